"""The driver's side: orders for the tasks of a query, and an ear for what they say.

A thread accepts. Each connection has a thread, which does the challenge and then reads, and a
writer (`wire.py`), so that neither a silent client nor a stopped worker holds up anybody else. What
tasks say is heard in one more thread, a word at a time.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait

from braided.orders.address import LineAddress
from braided.orders.ledger import Cuts, OrderLedger
from braided.orders.messages import (
    CaughtUp,
    CutOrder,
    CutWish,
    ForgetOrder,
    Order,
    StopOrder,
    TaskWord,
    encode,
    word_of,
)
from braided.orders.wire import Wire

__all__ = ["OrderPost"]

_KEY_BYTES = 32
_GREETING_S = 3.0
"""A worker waits less than that for the challenge to be done."""
_GREETINGS_MAX = 64
"""Connections that may be unproven at a time; of more, the oldest ends."""
_WORDS_MAX = 4096
"""Words that may wait for a slow ear; those that come then are lost."""
_BACKLOG = 256
_CLOSE_S = 2.0
_BREATH_S = 0.5

log = logging.getLogger("braided")


class OrderPost:
    """Listens on `host`, which workers must be able to reach; `OSError` if that can't be.

    Who has not proven in `greeting_s` to have the key is hung up on.
    """

    def __init__(
        self,
        host: str,
        hear: Callable[[TaskWord], None] | None = None,
        greeting_s: float = _GREETING_S,
    ) -> None:
        if not host:
            raise ValueError("a post needs a host to listen on: an empty one means every interface")
        self._hear = hear
        self._greeting_s = greeting_s
        self._listener = _listening(host)
        self.address = LineAddress(
            host, self._listener.getsockname()[1], secrets.token_bytes(_KEY_BYTES)
        )
        self._wake, self._woken = socket.socketpair()
        self._lock = threading.Lock()
        self._ledger = OrderLedger()
        self._unproven: dict[Wire, None] = {}  # oldest first
        self._wires: set[Wire] = set()
        self._words: queue.Queue[TaskWord | None] = queue.Queue(_WORDS_MAX)
        self._closed = False
        self._threads: set[threading.Thread] = set()
        self._acceptor = self._start(self._accept, "braided-orders-post")
        if hear is not None:
            self._start(self._listen, "braided-orders-ear")

    def stop(self, token: str, *, spares_later: bool = False) -> None:
        """Lets every task of a try stop at its next opportunity; returns at once.

        `spares_later`: but for those that begin after this. A try that is over stays so.
        """
        self._order(StopOrder(token, spares_later))

    def is_stopped(self, token: str) -> bool:
        return self._ledger.is_stopped(token)

    def cuts(self, token: str) -> Cuts:
        """Where channels of a try were cut: rows, by operator and channel."""
        with self._lock:
            return self._ledger.cuts(token)

    def forget(self, token: str) -> None:
        """For a try that is over: nothing is kept of it, here or in workers."""
        self._order(ForgetOrder(token))

    def close(self) -> None:
        """Ends threads and connections; orders that come later reach nobody."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wake.send(b".")
        self._acceptor.join()  # from here on no connection is added
        self._listener.close()
        with contextlib.suppress(queue.Full):  # then the ear sees by itself that it is over
            self._words.put_nowait(None)
        with self._lock:
            wires, threads = [*self._unproven, *self._wires], list(self._threads)
        for wire in wires:
            wire.hang_up()
        deadline = time.monotonic() + _CLOSE_S
        for thread in threads:
            if thread is not threading.current_thread():  # who hears may close
                thread.join(max(0.0, deadline - time.monotonic()))
        self._wake.close()
        self._woken.close()

    def _order(self, order: Order) -> None:
        with self._lock:
            if self._ledger.enter(order):
                self._broadcast(order)

    def _broadcast(self, order: Order) -> None:
        data = [encode(order)]
        for wire in self._wires:
            if not wire.send(data):
                log.debug("A worker takes no orders any more, and is left to itself")
                wire.hang_up()

    # -- connections ---------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            wait([self._listener, self._woken])
            if self._closed:
                return
            try:
                guest, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                continue  # it went away again
            except OSError as error:  # out of files, say: others may end
                log.debug("The post of orders can't accept a connection: %r", error)
                wait([self._woken], _BREATH_S)
                continue
            try:
                self._receive(guest)
            except (OSError, RuntimeError) as error:  # it is gone, or there are no more threads
                log.debug("The post of orders can't serve a connection: %r", error)

    def _receive(self, guest: socket.socket) -> None:
        try:
            wire = Wire(guest)
        except OSError:
            guest.close()
            raise
        with self._lock:
            self._unproven[wire] = None
            if len(self._unproven) > _GREETINGS_MAX:
                # The oldest, not this one: who has the key is done in no time.
                oldest = next(iter(self._unproven))
                del self._unproven[oldest]
                oldest.hang_up()
        try:
            self._start(lambda: self._serve(wire), "braided-orders-guest")
        except RuntimeError:
            with self._lock:
                self._unproven.pop(wire, None)
            wire.close()
            raise

    def _serve(self, wire: Wire) -> None:
        try:
            wire.admit(self.address.key, self._greeting_s)
            self._admit(wire)
            while True:
                self._take(wire, wire.receive())
        except Exception as error:  # whatever a peer sends, it costs no more than its connection
            log.debug("A connection to the post of orders ended: %r", error)
        finally:
            with self._lock:
                self._unproven.pop(wire, None)
                self._wires.discard(wire)
            wire.close()

    def _admit(self, wire: Wire) -> None:
        with self._lock:
            if self._closed:
                raise EOFError("the post is closed")
            self._unproven.pop(wire, None)
            # Under the lock, so that what was ordered before comes before what is ordered next.
            wire.send([encode(order) for order in [*self._ledger.orders(), CaughtUp()]])
            self._wires.add(wire)

    def _take(self, wire: Wire, data: bytes) -> None:
        word = word_of(data)
        if isinstance(word, CutWish):
            self._settle(wire, word)
        elif self._hear is not None:
            with contextlib.suppress(queue.Full):
                self._words.put_nowait(word)

    def _settle(self, wire: Wire, wish: CutWish) -> None:
        """Answers with the number that counts: the first that was wished for."""
        token, operator, channel = wish.token, wish.operator, wish.channel
        with self._lock:
            order = CutOrder(token, operator, channel, wish.rows)
            if self._ledger.enter(order):
                self._broadcast(order)
                return
            rows = self._ledger.cut_of(token, operator, channel)
            answer = (
                ForgetOrder(token) if rows is None else CutOrder(token, operator, channel, rows)
            )
            if not wire.send([encode(answer)]):
                wire.hang_up()

    # -- words ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        assert self._hear is not None
        level = logging.WARNING
        while (word := self._words.get()) is not None and not self._closed:
            try:
                self._hear(word)
            except Exception:
                log.log(level, "What a task said could not be used", exc_info=True)
                level = logging.DEBUG  # tasks say much, and the reason is the same

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                target()
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._threads.discard(thread)
            raise
        return thread


def _listening(host: str) -> socket.socket:
    family, _, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.create_server((str(where[0]), 0), family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return listener
