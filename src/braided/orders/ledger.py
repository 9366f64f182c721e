"""What has been ordered: which tries are to stop, and where channels were cut.

The driver has one, each line a copy that the same orders make in the same sequence, so that both
drop the same entries when there are too many. One thread at a time changes it. `is_stopped` and
`cut_of` are single look-ups, which any thread may do meanwhile.
"""

from __future__ import annotations

from braided.orders.messages import CaughtUp, CutOrder, ForgetOrder, Order, StopOrder

__all__ = ["TRIES_MAX", "Cuts", "OrderLedger"]

TRIES_MAX = 16
"""Tries of which something is kept: the newest."""
_CUTS_MAX = 65_536
_OVER_MAX = 64

Cuts = dict[tuple[str, int], int]
"""Rows after which channels end, by operator and channel."""


class OrderLedger:
    """The orders of the newest tries."""

    def __init__(self) -> None:
        self._tries: dict[str, Cuts] = {}
        self._stopped: dict[str, bool] = {}
        """Tries that are to stop, and whether later tasks are spared."""
        # Tasks may outlive their try. What they ask must not bring it back.
        self._over: dict[str, None] = {}

    def is_stopped(self, token: str) -> bool:
        return token in self._stopped

    def spares_later(self, token: str) -> bool:
        """Whether tasks of a try that is to stop are spared if they begin now."""
        return self._stopped.get(token, False)

    def is_over(self, token: str) -> bool:
        return token in self._over

    def cut_of(self, token: str, operator: str, channel: int) -> int | None:
        cuts = self._tries.get(token)
        return None if cuts is None else cuts.get((operator, channel))

    def cuts(self, token: str) -> Cuts:
        return dict(self._tries.get(token, {}))

    def enter(self, order: Order) -> bool:
        """Whether the order says something new; of two cuts of a channel, the first counts."""
        match order:
            case StopOrder(token, spares_later):
                if token in self._over:
                    return False
                if token in self._stopped and self._stopped[token] <= spares_later:
                    return False  # not twice, and who is to stop is not spared afterwards
                self._cuts(token)
                self._stopped[token] = spares_later
            case CutOrder(token, operator, channel, rows):
                if token in self._over or (operator, channel) in self._cuts(token):
                    return False
                cuts = self._cuts(token)
                cuts[operator, channel] = rows
                if len(cuts) > _CUTS_MAX:
                    del cuts[next(iter(cuts))]
            case ForgetOrder(token):
                if token in self._over:
                    return False
                self._drop(token)
                self._over[token] = None
                if len(self._over) > _OVER_MAX:
                    del self._over[next(iter(self._over))]
            case CaughtUp():
                return False
        return True

    def orders(self) -> list[Order]:
        """All that makes a ledger like this one, for who comes later."""
        orders: list[Order] = []
        for token, cuts in self._tries.items():
            if token in self._stopped:
                orders.append(StopOrder(token, self._stopped[token]))
            orders.extend(CutOrder(token, *place, rows) for place, rows in cuts.items())
        orders.extend(ForgetOrder(token) for token in self._over)
        return orders

    def _cuts(self, token: str) -> Cuts:
        """The cuts of a try, which is known from here on."""
        if token not in self._tries:
            self._tries[token] = {}
            if len(self._tries) > TRIES_MAX:
                self._drop(next(iter(self._tries)))
        return self._tries[token]

    def _drop(self, token: str) -> None:
        self._tries.pop(token, None)
        self._stopped.pop(token, None)
