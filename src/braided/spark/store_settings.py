"""How a session reaches a store: its settings for Hadoop's file systems, as `obstore` takes them.

Who has told Spark how to read `s3a://bucket` need not say it a second time. What is set nowhere
comes from the environment (AWS_ACCESS_KEY_ID, a profile of the machine, and so on), which the
client reads by itself. Values here may be secrets: they are in no message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from braided.spark.jvm import Jvm
from braided.store.durable.location import Location
from braided.store.durable.open_store import open_store
from braided.store.durable.store import Store

__all__ = ["client_settings", "session_checkpoint", "session_store"]

_S3 = {
    "access.key": "access_key_id",
    "secret.key": "secret_access_key",
    "session.token": "session_token",
    "endpoint": "endpoint",
    "endpoint.region": "region",
}
_REGION = "us-east-1"
"""What stores that are not Amazon's go by; a signature has to name some region."""

_CENTRAL = "s3.amazonaws.com"
"""What Spark sets where nobody has: Amazon's, of whatever region."""

_PREFIX = re.compile(r"^(aws|google|azure_storage|azure)_")

_Look = Callable[[str], str | None]


def session_store(
    spark: SparkSession, location: str | Path | Location, given: Mapping[str, str] | None = None
) -> Store:
    """The store at a location; what is given to a query wins over the session's settings."""
    where = Location.of(location)
    if where.local is not None:
        return open_store(where)
    settings = _settings(where, Jvm(spark).hadoop_settings())
    return open_store(where, {**settings, **_short(given or {})})


def session_checkpoint(spark: SparkSession, checkpoint: str | Path | Location) -> Store:
    """What Braided keeps in a query's checkpoint."""
    return session_store(spark, Location.of(checkpoint) / "braided")


def client_settings(spark: SparkSession, location: Location) -> dict[str, str]:
    """The session's settings for a location by the long names that other clients go by, such as
    `aws_access_key_id`. They have secrets among them.
    """
    if location.local is not None:
        return {}
    settings = _settings(location, Jvm(spark).hadoop_settings())
    if location.scheme not in ("s3", "s3a", "s3n"):
        return settings
    named = {f"aws_{name}": value for name, value in settings.items()}
    if settings.get("endpoint", "").startswith("http:"):
        named["aws_allow_http"] = "true"
    return named


def _settings(location: Location, look: _Look) -> dict[str, str]:
    if location.scheme in ("s3", "s3a", "s3n"):
        return _of_s3(location.authority, look)
    if location.scheme == "gs":
        return _named({"fs.gs.auth.service.account.json.keyfile": "service_account"}, look)
    if location.scheme == "hdfs":
        return _named({"fs.defaultFS": "fs.defaultFS"}, look) if not location.authority else {}
    # Azure's keys are named by account, which is the host of container@account.
    host = location.authority.rpartition("@")[2]
    return _named({f"fs.azure.account.key.{host}": "account_key"}, look)


def _of_s3(bucket: str, look: _Look) -> dict[str, str]:
    """A bucket's own settings win over those of all, as in Hadoop."""

    def find(name: str) -> str | None:
        return look(f"fs.s3a.bucket.{bucket}.{name}") or look(f"fs.s3a.{name}")

    settings = {ours: value for theirs, ours in _S3.items() if (value := find(theirs))}
    if settings.get("endpoint") == _CENTRAL:
        del settings["endpoint"]
    endpoint = settings.get("endpoint")
    if endpoint is not None:
        settings.setdefault("region", _REGION)
        if "://" not in endpoint:
            plain = (find("connection.ssl.enabled") or "true").lower() == "false"
            settings["endpoint"] = f"{'http' if plain else 'https'}://{endpoint}"
    if "AnonymousAWSCredentialsProvider" in (find("aws.credentials.provider") or ""):
        settings["skip_signature"] = "true"
    return settings


def _short(settings: Mapping[str, str]) -> dict[str, str]:
    """By the names without the store's, which mean the same: a setting must be there once."""
    return {_PREFIX.sub("", name): value for name, value in settings.items()}


def _named(names: Mapping[str, str], look: _Look) -> dict[str, str]:
    return {ours: value for theirs, ours in names.items() if (value := look(theirs))}
