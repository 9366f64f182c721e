"""Ending a running batch early: its tasks stop, and what they have not done is carried.

A cut is asked for by a user, by a migration, or by what watches batches (`query/watching.py`). It
goes out to the tasks over the control path and is nothing but a request: who does not hear of it
does all its rows. What becomes true is what the reports say.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession

from braided.flow.graph import Flow
from braided.orders.address import LineAddress
from braided.orders.post import OrderPost
from braided.query.watching import Watch
from braided.spark.executors import driver_hosts
from braided.spark.stage_rows import StageRows
from braided.tasks.outcome import CutAsked

__all__ = ["Cutter", "open_cutter"]

log = logging.getLogger("braided")


class Cutter:
    """Knows which try of a batch is running, and can end it."""

    def __init__(
        self, watched_rows: Callable[[int], int | None] | None = None, has_timers: bool = True
    ) -> None:
        """`watched_rows`: how many rows a stage has to do; None if nobody watches. `has_timers`:
        whether timers or watermarks wait for a batch that is not cut.
        """
        self._post: OrderPost | None = None
        self._host = ""
        self._watch = (
            None if watched_rows is None else Watch(watched_rows, self._cut_channels, has_timers)
        )
        self._lock = threading.Lock()
        self._token = ""
        self._begun_s = 0.0
        self._asked: CutAsked | None = None

    def listen(self, bind: str, host: str) -> None:
        """Lets tasks reach the driver, which listens on one address and is known by another;
        where that can't be, no batch ends early.
        """
        try:
            self._post = OrderPost(bind, None if self._watch is None else self._watch.hear)
            self._host = host
        except OSError as error:
            log.warning("running tasks can't be reached, so no batch ends early: %s", error)

    @property
    def address(self) -> LineAddress | None:
        """Where tasks reach the driver; None where they do not."""
        return None if self._post is None else replace(self._post.address, host=self._host)

    @property
    def watches(self) -> bool:
        """Whether tasks are to tell how far they are."""
        return self._watch is not None and self._post is not None

    @contextmanager
    def running(self, token: str, channels: Mapping[str, int], *, is_first: bool) -> Iterator[None]:
        """While the tasks of a try run, on so many channels by operator. Only the first try of a
        batch can be cut: one that is run again may be so because of the cut.
        """
        if self._watch is not None and is_first:
            self._watch.began(token, channels)
        with self._lock:
            self._begun_s, self._asked = time.monotonic(), None
            self._token = token if is_first else ""
        try:
            yield
        finally:
            with self._lock:
                self._token = ""
            if self._post is not None:
                self._post.forget(token)

    def cut(self, why: str, *, rebalances: bool = True) -> bool:
        """Asks all tasks of the running batch to stop; False where none is running. `rebalances`:
        whether the rest is to have a better table.
        """
        return self._cut(why, None, rebalances, spares_later=False)

    def _cut_channels(self, why: str, token: str) -> bool:
        """Asks the tasks that run now to stop, and those after them to go on with what has come
        through; False where another try is running.
        """
        return self._cut(why, token, rebalances=True, spares_later=True)

    def _cut(self, why: str, token: str | None, rebalances: bool, spares_later: bool) -> bool:
        with self._lock:
            if self._post is None or not self._token or token not in (None, self._token):
                return False
            if self._asked is None:
                now_s = time.monotonic()
                self._asked = CutAsked(why, now_s - self._begun_s, now_s, rebalances)
            self._post.stop(self._token, spares_later=spares_later)
            return True

    def taken(self) -> CutAsked | None:
        """What was asked of the newest try, if anything."""
        with self._lock:
            return self._asked

    def learn(self, batch_s: float, tasks_s: float, was_cut: bool) -> None:
        """A batch took so long, of which its slowest tasks so much; whether it was cut."""
        if self._watch is not None:
            self._watch.learn(batch_s, tasks_s, was_cut)

    def close(self) -> None:
        if self._post is not None:
            self._post.close()
        if self._watch is not None:
            self._watch.close()


def open_cutter(spark: SparkSession, flow: Flow, can_cut: bool, is_watched: bool) -> Cutter:
    """For the batches of a query; whether it is to end those that one channel holds up."""
    has_timers = any(step.fires or step.minds_watermark for step in flow.steps)
    cutter = Cutter(StageRows(spark).read_by if is_watched else None, has_timers)
    if can_cut:
        cutter.listen(*driver_hosts(spark))
    return cutter
