"""Peers of a post of orders: workers in processes of their own, and some that nobody wants."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from braided.orders.address import LineAddress
from braided.orders.messages import TaskWord
from braided.orders.post import OrderPost

_TESTS = Path(__file__).resolve().parent.parent
_PROGRAM = _TESTS / "orders" / "worker_program.py"
HOST = "127.0.0.1"
DEADLINE_S = 30.0
PATIENCE_S = 60.0
"""Worker and driver come together in that time however busy the machine is."""


def becomes(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> bool:
    """Whether something is so before long."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Lines of this process wait for the driver however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("braided.orders.line.CONNECT_S", PATIENCE_S)
        yield


def patient_post(hear: Callable[[TaskWord], None] | None = None) -> OrderPost:
    """A post that waits for workers however busy the machine is, and for strangers as long."""
    return OrderPost(HOST, hear, PATIENCE_S)


class WorkerProcess:
    """A process that has a line to the driver; what is asked of it, it does to that line."""

    def __init__(self, address: LineAddress) -> None:
        ways = [str(_TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, ways))},
        )
        self.ask(address.host, address.port, address.key.hex())

    def ask(self, *words: Any) -> Any:
        self.begin(*words)
        return self.answer()

    def begin(self, *words: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps(words), file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.process.kill()  # also if it is stopped
        self.process.communicate()


def proven(address: LineAddress) -> Connection[Any, Any]:
    """A connection that has passed the challenge, to say whatever comes to mind."""
    with contextlib.closing(socket.create_connection((address.host, address.port))) as connected:
        connection: Connection[Any, Any] = Connection(os.dup(connected.fileno()))
    answer_challenge(connection, address.key)
    deliver_challenge(connection, address.key)
    return connection


def framed(message: bytes) -> bytes:
    """A message as `multiprocessing.connection` has it on the wire."""
    return struct.pack("!i", len(message)) + message


def last_words(connected: socket.socket, deadline_s: float = DEADLINE_S) -> bytes:
    """All that a peer says until it hangs up."""
    connected.settimeout(deadline_s)
    heard = b""
    with contextlib.suppress(ConnectionError):
        while some := connected.recv(4096):
            heard += some
    return heard


class Recorder:
    """Stands between a worker and the driver, and writes down what either says."""

    def __init__(self, address: LineAddress) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._target = (address.host, address.port)
        self.address = LineAddress("127.0.0.1", self._listener.getsockname()[1], address.key)
        self.to_driver = b""
        self.to_worker = b""
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self) -> None:
        worker, _ = self._listener.accept()
        driver = socket.create_connection(self._target)
        with worker, driver, contextlib.suppress(ConnectionError):
            while True:
                for end in select.select([worker, driver], [], [])[0]:
                    if not (some := end.recv(4096)):
                        return
                    if end is worker:
                        self.to_driver += some
                        driver.sendall(some)
                    else:
                        self.to_worker += some
                        worker.sendall(some)

    def close(self) -> None:
        self._listener.close()


@contextlib.contextmanager
def answering(reply: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that does the same with every client, in one thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client, contextlib.suppress(OSError):
                    reply(client)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE_S)
        listener.close()
