"""Between a query and its object store: passes everything on, until it is told not to.

Bytes go through as they are, so that signatures stay valid. What misbehaves are requests that begin
while it lasts: one begins with the first bytes of a connection, or after an answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

__all__ = ["Misbehaviour", "StoreProxy", "proxied"]

_CHUNK = 1 << 16
_LATE_S = 0.4
_DRAIN_S = 2.0
_SAID = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_REFUSAL = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: " + str(len(_SAID)).encode() + b"\r\n\r\n" + _SAID
)
_GO_ON = b"HTTP/1.1 100"


class Misbehaviour(StrEnum):
    LATE = "late"
    """Every request waits."""
    ERRORS = "errors"
    """Every request is answered with 503, and not passed on."""
    SILENT = "silent"
    """Nothing goes through, in either direction, until it is over."""
    GONE = "gone"
    """Connections are reset."""
    LOST_ANSWERS = "lost answers"
    """Requests are passed on; instead of the answer, the connection ends."""


class StoreProxy:
    """Listens on loopback, in a thread of its own."""

    def __init__(self, upstream: str) -> None:
        """`upstream` is the endpoint of the store, `http://host:port`."""
        host, _, port = upstream.removeprefix("http://").partition(":")
        self._upstream = host, int(port)
        self._loop = asyncio.new_event_loop()
        self._mode: Misbehaviour | None = None
        self._well = asyncio.Event()
        self._well.set()
        self._connections: set[asyncio.Task[None]] = set()
        self.affected = 0
        """Requests that something was done to."""
        listening: list[int] = []
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(listening, ready), name="store proxy", daemon=True
        )
        self._thread.start()
        ready.wait()
        self.endpoint = f"http://127.0.0.1:{listening[0]}"

    def misbehave(self, how: Misbehaviour | None) -> None:
        """From now on; None is to behave again."""
        self._loop.call_soon_threadsafe(self._turn, how)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _turn(self, how: Misbehaviour | None) -> None:
        self._mode = how
        if how is Misbehaviour.SILENT:
            self._well.clear()
        else:
            self._well.set()

    def _run(self, listening: list[int], ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        listening.append(server.sockets[0].getsockname()[1])
        ready.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            self._loop.run_until_complete(
                asyncio.gather(*self._connections, return_exceptions=True)
            )
            self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                to_store = await asyncio.open_connection(*self._upstream)
                await _Connection(self, (reader, writer), to_store).run()
        finally:
            self._connections.discard(task)
            writer.close()

    # -- what a connection asks ------------------------------------------------------------

    def begin_request(self) -> Misbehaviour | None:
        if self._mode is not None:
            self.affected += 1
        return self._mode

    async def silence(self) -> None:
        """Waits while nothing goes through."""
        await self._well.wait()


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    def __init__(self, proxy: StoreProxy, client: _Ends, store: _Ends) -> None:
        self._proxy = proxy
        self._client, self._store = client, store
        self._answered = True
        self._answer_is_lost = False

    async def run(self) -> None:
        ways = [asyncio.create_task(self._ask()), asyncio.create_task(self._answer())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._store[1].close()

    async def _ask(self) -> None:
        reader, writer = self._client[0], self._store[1]
        while chunk := await reader.read(_CHUNK):
            if self._answered:
                self._answered = False
                how = self._proxy.begin_request()
                if how is Misbehaviour.ERRORS:
                    await self._refuse()
                    return
                if how is Misbehaviour.GONE:
                    self._client[1].transport.abort()
                    return
                if how is Misbehaviour.LATE:
                    await asyncio.sleep(_LATE_S)
                self._answer_is_lost = how is Misbehaviour.LOST_ANSWERS
            await self._proxy.silence()
            writer.write(chunk)
            await writer.drain()

    async def _answer(self) -> None:
        reader, writer = self._store[0], self._client[1]
        while chunk := await reader.read(_CHUNK):
            await self._proxy.silence()
            if not chunk.startswith(_GO_ON):  # which asks for the body of the request
                if self._answer_is_lost:
                    writer.transport.abort()
                    return
                self._answered = True
            writer.write(chunk)
            await writer.drain()

    async def _refuse(self) -> None:
        reader, writer = self._client
        writer.write(_REFUSAL)
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        with suppress(asyncio.TimeoutError):  # closed at once, it would lose what was said
            async with asyncio.timeout(_DRAIN_S):
                while await reader.read(_CHUNK):
                    pass


@contextmanager
def proxied(upstream: str) -> Iterator[StoreProxy]:
    proxy = StoreProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
