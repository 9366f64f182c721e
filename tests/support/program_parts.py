"""What the programs of a new user are made of, in a module that workers can import."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import braided

__all__ = ["FAR_MS", "GAP_MS", "Sessions", "TopList", "Watch"]

GAP_MS = 15 * 60_000
FAR_MS = 4_000_000_000_000


class Sessions(braided.Operator):
    country: str = ""
    clicks: int = 0
    last: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        now = round(row.t.timestamp() * 1000)
        if self.clicks and now - self.last > GAP_MS:
            yield self.key.user, self.country, self.clicks
            self.clicks = 0
        self.country, self.clicks, self.last = row.country, self.clicks + 1, now
        for timer in self.timers():
            self.deleteTimer(timer)
        self.setTimer(now + GAP_MS)
        time.sleep(0.02)  # what the user looks up elsewhere

    def onTimer(self, fired: datetime) -> Iterator[Any]:
        yield self.key.user, self.country, self.clicks
        self.forget()


class TopList(braided.Operator):
    best: list[tuple[int, str]] = []  # noqa: RUF012

    def onRow(self, row: Any) -> Iterator[Any]:
        self.best = sorted([*self.best, (row.clicks, row.user)], reverse=True)[:3]
        yield row.country, [user for _, user in self.best]


class Watch(StatefulProcessor):
    """A native program: value, map and TTL state, a timer that fires soon and one far away."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "payments int, amount bigint")
        self.sizes = handle.getMapState("sizes", "size string", "payments int")
        self.recent = handle.getValueState("recent", "amount int", 3_600_000)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        payments, amount = self.total.get() or (0, 0)
        for row in rows:
            if row.amount == 0:  # tells all that there is
                sizes = sorted((*size, *n) for size, n in self.sizes.iterator())
                far = sorted(t for t in self.handle.listTimers() if t >= FAR_MS)
                said = f"{payments} {amount} {sizes} {self.recent.get()} {far}"
                yield Row(account=key[0], said=said)
                continue
            payments, amount = payments + 1, amount + row.amount
            size = ("large" if row.amount > 10 else "small",)
            self.sizes.updateValue(size, ((self.sizes.getValue(size) or (0,))[0] + 1,))
            self.recent.update((row.amount,))
            self.handle.registerTimer(FAR_MS + row.amount)
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
            yield Row(account=key[0], said=f"{payments} {amount}")
        self.total.update((payments, amount))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        yield Row(account=key[0], said="a moment later")

    def close(self) -> None:
        pass
