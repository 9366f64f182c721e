"""A worker's side: what the driver has ordered, at the price of a look-up.

`line_to` gives the line of this process to a query's driver. A thread connects and reads, so that
tasks wait once, and shortly: for the first attempt to connect, because a task that begins is to
know what was agreed before. Where the driver can't be reached, or vanishes, nothing is ordered, and
a line in use tries again in its thread some seconds later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time

from braided.orders.address import LineAddress
from braided.orders.ledger import OrderLedger
from braided.orders.messages import CaughtUp, CutWish, TaskWord, encode, order_of
from braided.orders.wire import Wire

__all__ = ["CONNECT_S", "OrderLine", "line_to"]

CONNECT_S = 2.0
"""As long as a task waits for the first attempt to connect."""
_RETRY_S = 10.0
_LINES_MAX = 8

log = logging.getLogger("braided")


class OrderLine:
    """Hears one driver's orders; without an address nobody orders anything."""

    def __init__(self, address: LineAddress | None, retry_s: float = _RETRY_S) -> None:
        self._address = address
        self._retry_s = retry_s
        self._begin()

    def _begin(self) -> None:
        self._ledger = OrderLedger()
        self._wire: Wire | None = None
        self._thread: threading.Thread | None = None
        self._news = threading.Condition()
        self._tried = threading.Event()
        self._retry_at_s = 0.0
        self._closed = self._address is None
        self._complained = False

    def is_stopped(self, token: str) -> bool:
        """Whether a try is to stop: to be asked between any two pieces of work."""
        return self._ledger.is_stopped(token)

    def spares_later(self, token: str) -> bool:
        """Whether a task of a try that is to stop is spared if it begins now."""
        return self._ledger.spares_later(token)

    def cut_of(self, token: str, operator: str, channel: int) -> int | None:
        """The rows after which a channel ends, if an attempt of it has been cut."""
        return self._ledger.cut_of(token, operator, channel)

    def agree(
        self, token: str, operator: str, channel: int, rows: int, timeout_s: float = 1.0
    ) -> int:
        """The rows after which a channel ends, where this attempt would end after `rows`.

        That is what the first attempt said that asked; one's own if the driver does not answer.
        """
        cut = self.cut_of(token, operator, channel)
        if cut is not None:
            return cut
        wish = CutWish(token, operator, int(channel), int(rows))
        deadline_s = time.monotonic() + timeout_s
        self._connect_if_due()
        wire = self._wire
        if wire is not None and wire.send([encode(wish)], timeout_s):  # words may fill the outbox
            with self._news:
                self._news.wait_for(
                    lambda: (
                        self.cut_of(token, operator, channel) is not None
                        or self._ledger.is_over(token)
                        or self._wire is not wire
                    ),
                    deadline_s - time.monotonic(),
                )
        cut = self.cut_of(token, operator, channel)
        return wish.rows if cut is None else cut

    def tell(self, word: TaskWord) -> None:
        """Says how far an attempt is, to a driver that may or may not hear it."""
        self._connect_if_due()
        wire = self._wire
        if wire is None:
            return
        try:
            wire.send([encode(word)])  # too many that wait already: it is lost
        except (TypeError, ValueError, OverflowError) as error:
            log.debug("A task said what can't be sent: %s", error)

    def reach(self) -> None:
        """Waits for the first attempt to connect; later ones are waited for by nobody."""
        self._connect_if_due()
        if not self._closed and not self._tried.is_set():
            self._tried.wait(CONNECT_S)
            self._tried.set()

    def close(self) -> None:
        """Nothing is ordered any more."""
        with self._news:
            self._closed = True
            wire, self._ledger = self._wire, OrderLedger()
        self._tried.set()
        if wire is not None:
            wire.hang_up()

    def begin_anew(self) -> None:
        """After a fork: the threads and the connection are the other process's."""
        if self._wire is not None:
            self._wire.abandon()
        self._begin()

    def _connect_if_due(self) -> None:
        if self._wire is not None or self._closed or time.monotonic() < self._retry_at_s:
            return
        with self._news:
            if self._thread is not None and self._thread.is_alive():
                return
            self._retry_at_s = time.monotonic() + self._retry_s
            thread = threading.Thread(target=self._follow, name="braided-orders-line", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads to be had
                self._complain(error)
                self._tried.set()
            else:
                self._thread = thread

    def _follow(self) -> None:
        """Connects, and follows what is ordered until the connection ends."""
        assert self._address is not None
        wire: Wire | None = None
        try:
            where = (self._address.host, self._address.port)
            wire = _wire_on(socket.create_connection(where, CONNECT_S))
            wire.introduce(self._address.key, CONNECT_S)
            self._read(wire)
        except Exception as error:  # whatever it is, tasks go on without orders
            self._complain(error)
        finally:
            with self._news:
                self._wire = None
                self._retry_at_s = time.monotonic() + self._retry_s
                self._news.notify_all()
            self._tried.set()
            if wire is not None:
                wire.close()

    def _read(self, wire: Wire) -> None:
        # Filled aside: what was known before holds until the driver has told all it knows.
        ledger = OrderLedger()
        while True:
            order = order_of(wire.receive())
            with self._news:
                if self._closed:
                    return
                ledger.enter(order)
                if isinstance(order, CaughtUp):
                    self._ledger, self._wire = ledger, wire
                    self._tried.set()
                self._news.notify_all()

    def _complain(self, error: Exception) -> None:
        if not self._complained and not self._closed:
            self._complained = True
            log.debug("No orders from the driver at %s: %r", self._address, error)


def _wire_on(connected: socket.socket) -> Wire:
    try:
        return Wire(connected)
    except OSError:
        connected.close()
        raise


# -- the lines of this process -----------------------------------------------------------------

_nobody = OrderLine(None)
_lines: dict[LineAddress, OrderLine] = {}  # the one used longest ago first
_lock = threading.Lock()


def line_to(address: LineAddress | None) -> OrderLine:
    """This process's line to a driver; a task asks for it when it begins, and keeps it."""
    if address is None:
        return _nobody
    with _lock:
        line = _lines.pop(address, None) or OrderLine(address)
        _lines[address] = line
        surplus = _lines.pop(next(iter(_lines))) if len(_lines) > _LINES_MAX else None
    if surplus is not None:
        surplus.close()
    line.reach()
    return line


def _begin_anew() -> None:
    """In a process that was forked from one that had lines, such as a worker of Spark's daemon."""
    global _lock
    _lock = threading.Lock()  # the old one may be held by a thread that is not here
    for line in list(_lines.values()):
        with contextlib.suppress(OSError):
            line.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
