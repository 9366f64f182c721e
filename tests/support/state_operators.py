"""Operators whose state is looked at in tests: fields of many kinds, timers, keys that go."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import braided

__all__ = ["Forgetful", "Sessions", "Visit"]


@dataclass
class Visit:
    page: str
    at: dt.datetime


class Sessions(braided.Operator):
    visits: list[Visit] = []  # noqa: RUF012 - a field's default, copied for every key
    pages: dict[str, int] = {}  # noqa: RUF012
    longest: float | None = None

    def onRow(self, row: Any) -> Iterator[tuple[str, int]]:
        at = dt.datetime(2024, 1, 1, 0, row.c)
        self.visits = [*self.visits, Visit(f"/{row.v}", at)]
        self.pages = {**self.pages, row.k: row.c}
        self.setTimer(at + dt.timedelta(days=36500))
        yield row.k, len(self.visits)

    def onTimer(self, when: dt.datetime) -> None:
        self.forget()


class Forgetful(braided.Operator):
    count: int = 0
    seen: dict[str, int] = {}  # noqa: RUF012 - a field's default, copied for every key

    def onRow(self, row: Any) -> None:
        self.count += row.v
        self.seen = {**self.seen, str(row.v): row.c}
        if row.v < 0:
            self.forget()
