"""What a store far away does to requests on their way."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from braided.bench.s3_server import S3Server
from braided.errors import CheckpointWriteError
from braided.store.durable import object_store
from braided.store.durable.open_store import open_store
from support.chaos.store_proxy import Misbehaviour, StoreProxy, proxied

SHORT = {"timeout": timedelta(seconds=1), "connect_timeout": timedelta(seconds=1)}


@contextmanager
def silent_for(seconds: float, proxy: StoreProxy) -> Iterator[None]:
    proxy.misbehave(Misbehaviour.SILENT)
    end = threading.Timer(seconds, proxy.misbehave, (None,))
    end.start()
    try:
        yield
    finally:
        end.cancel()
        proxy.misbehave(None)


def test_credentials_come_from_the_environment_where_nobody_has_said_them(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("access_key_id", "secret_access_key")
    told = {name: value for name, value in s3_server.settings.items() if name not in names}
    for secret in ("another", s3_server.settings["secret_access_key"]):
        # Clients are made once in a process, and not anew when its environment changes.
        monkeypatch.setattr(object_store, "_clients", {})
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.settings["access_key_id"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        store = open_store(f"{s3_server.url}/{uuid.uuid4().hex}", told)
        if secret == "another":
            with pytest.raises(CheckpointWriteError, match="can't write") as caught:
                store.put("x", b"1")
            assert secret not in str(caught.value)
    store.put("x", b"1")
    assert bytes(store.get("x")) == b"1"


def test_all_that_a_store_needs_can_come_from_the_environment(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_clients", {})
    for name, value in s3_server.settings.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    store = open_store(f"{s3_server.url}/{uuid.uuid4().hex}")
    store.put("x", b"1")
    assert bytes(store.get("x")) == b"1"


@pytest.mark.slow
def test_a_create_that_nobody_answered_in_time_is_made_once_or_found(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that were given up may still arrive, late, at the store."""
    monkeypatch.setattr(object_store, "_TIMEOUTS", SHORT)
    with proxied(s3_server.endpoint) as proxy:
        url = f"{s3_server.url}/{uuid.uuid4().hex}"
        far = open_store(url, replace(s3_server, endpoint=proxy.endpoint).settings)
        near = open_store(url, s3_server.settings)
        with silent_for(2.5, proxy):
            assert far.put_if_absent("manifests/1.json", b"ours")
        assert bytes(near.get("manifests/1.json")) == b"ours"
        assert near.put_if_absent("manifests/2.json", b"theirs")
        with silent_for(2.5, proxy):
            assert not far.put_if_absent("manifests/2.json", b"ours")
        assert bytes(near.get("manifests/2.json")) == b"theirs"
        assert near.list("") == ["manifests/1.json", "manifests/2.json"]


@pytest.mark.slow
def test_a_create_that_nothing_is_known_of_can_not_be_written_rather_than_read(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_TIMEOUTS", SHORT)
    monkeypatch.setattr(object_store, "_RETRIES", {"max_retries": 0})
    with proxied(s3_server.endpoint) as proxy:
        url = f"{s3_server.url}/{uuid.uuid4().hex}"
        far = open_store(url, replace(s3_server, endpoint=proxy.endpoint).settings)
        # Longer than a create and the look after it take, and shorter than all creates do.
        with silent_for(2.5, proxy):
            assert far.put_if_absent("manifests/1.json", b"ours")
        with silent_for(60, proxy), pytest.raises(CheckpointWriteError, match="can't write"):
            far.put_if_absent("manifests/2.json", b"ours")
