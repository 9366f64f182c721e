"""One connection between the driver and a worker: the challenge, then messages of bytes.

Both ends prove that they have the key by the challenge of `multiprocessing.connection`, and nothing
is unpickled, ever: after the challenge there are `send_bytes` and `recv_bytes` only. Who sends
leaves messages in an outbox, which a thread empties, and so never waits for a peer that does not
read. One thread reads, and it is the one that closes; others hang up, which lets it end.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

__all__ = ["MESSAGE_BYTES_MAX", "Wire"]

MESSAGE_BYTES_MAX = 64 << 10
_OUTBOX_MAX = 1024
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds and tries after which a host that vanished without a word counts as gone."""


class Wire:
    """A connected socket that speaks in messages."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)  # of the socket itself: `Connection` reads and writes plainly
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # not everywhere
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._socket = connected
        self._connection = Connection(os.dup(connected.fileno()))
        self._outbox: queue.Queue[Sequence[bytes] | None] = queue.Queue(_OUTBOX_MAX)
        self._writer: threading.Thread | None = None
        self._closing = threading.Lock()

    def admit(self, key: bytes, limit_s: float) -> None:
        """The challenge, on the driver's side; raises if the other end fails it."""
        with self._limit(limit_s):
            deliver_challenge(self._connection, key)
            answer_challenge(self._connection, key)
        self._start_writer()

    def introduce(self, key: bytes, limit_s: float) -> None:
        """The challenge, on a worker's side; raises if the other end fails it."""
        with self._limit(limit_s):
            answer_challenge(self._connection, key)
            deliver_challenge(self._connection, key)
        self._start_writer()

    def send(self, messages: Sequence[bytes], timeout_s: float = 0.0) -> bool:
        """Leaves messages to be sent; False if too many wait already, or one is too long."""
        if any(len(message) > MESSAGE_BYTES_MAX for message in messages):
            return False
        try:
            self._outbox.put(messages, timeout=timeout_s)
        except queue.Full:
            return False
        return True

    def receive(self) -> bytes:
        """The next message; `EOFError` or `OSError` when there is none any more."""
        return self._connection.recv_bytes(MESSAGE_BYTES_MAX)

    def hang_up(self) -> None:
        """Ends the connection for both sides; any thread may."""
        with self._closing, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """For the thread that reads, when it is done."""
        self.hang_up()
        if self._writer is not None:
            # If the outbox is full, the writer is at its end: what it writes now fails.
            with contextlib.suppress(queue.Full):
                self._outbox.put_nowait(None)
            self._writer.join()
        with self._closing:
            self.abandon()

    def abandon(self) -> None:
        """Lets go of the socket and leaves the connection as it is: after a fork, it is another's.

        Takes no lock, as those of a process that was forked may be held for ever.
        """
        for end in (self._connection, self._socket):
            with contextlib.suppress(OSError):
                end.close()

    @contextlib.contextmanager
    def _limit(self, limit_s: float) -> Iterator[None]:
        """Hangs up unless what is done here is done in time, however many bytes trickle in."""
        timer = threading.Timer(limit_s, self.hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _start_writer(self) -> None:
        writer = threading.Thread(target=self._write, name="braided-orders-writer", daemon=True)
        writer.start()
        self._writer = writer

    def _write(self) -> None:
        try:
            while (messages := self._outbox.get()) is not None:
                for message in messages:
                    self._connection.send_bytes(message)
        except OSError:
            self.hang_up()  # the reader notices, and says so
