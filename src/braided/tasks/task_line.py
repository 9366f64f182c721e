"""A task's end of the control path: whether it is to stop, and where; how far it is.

A driver that ends a batch early says so to all tasks of it (`orders/`). A task that hears of it
agrees with the driver on the number of rows after which it stops. From then on that is where the
channel is cut, for every attempt: one that is run again stops at the same row. A task that hears
nothing does all its rows.
"""

from __future__ import annotations

from time import perf_counter

from pyspark import TaskContext

from braided.orders.address import LineAddress
from braided.orders.line import OrderLine, line_to
from braided.orders.messages import TaskWord
from braided.tasks.spec import BatchSpec

__all__ = ["TaskLine", "open_line"]

_WORD_S = 0.2
"""How often a task tells how far it is."""


class TaskLine:
    """One attempt of one channel, as the driver hears of it and it of the driver."""

    def __init__(
        self,
        line: OrderLine,
        batch: BatchSpec,
        operator: str,
        channel: int,
        stage: int = -1,
        can_stop: bool = True,
    ) -> None:
        self._line = line
        self.can_stop = can_stop
        """Whether there is a driver that could tell it to."""
        self._token = batch.token
        self._is_watched = batch.is_watched
        self._operator = operator
        self._channel = channel
        self._stage = stage
        self._begun_s = self._told_s = perf_counter()
        begins_late = line.is_stopped(batch.token)
        self._is_spared = begins_late and line.spares_later(batch.token)
        self.holds_watermark = batch.cut is not None or batch.holds_input or begins_late
        """Whether rows may have been left before this task: the batch was being ended when it
        began, or leaves its input.
        """
        self._tell(0, False)

    def limit(self, rows: int) -> int | None:
        """After how many rows in all the task stops, given how many it has done; None to go on."""
        if not self._line.is_stopped(self._token):
            return None
        agreed = self._line.cut_of(self._token, self._operator, self._channel)
        if agreed is not None or self._is_spared:
            return agreed
        return self._line.agree(self._token, self._operator, self._channel, rows)

    def went(self, rows: int) -> None:
        """So many rows are done; the driver is told now and then, where it wants to know."""
        if self._is_watched and perf_counter() - self._told_s >= _WORD_S:
            self._tell(rows, False)

    def ended(self, rows: int) -> None:
        self._tell(rows, True)

    def _tell(self, rows: int, ended: bool) -> None:
        if not self._is_watched:
            return
        self._told_s = perf_counter()
        seconds = self._told_s - self._begun_s
        self._line.tell(
            TaskWord(
                token=self._token,
                operator=self._operator,
                channel=self._channel,
                attempt="",
                stage=self._stage,
                rows=rows,
                seconds=seconds,
                ended=ended,
            )
        )


def open_line(address: LineAddress | None, batch: BatchSpec, name: str, channel: int) -> TaskLine:
    """The line of the task that runs here."""
    context = TaskContext.get()
    stage = -1 if context is None else context.stageId()
    can_stop = address is not None
    return TaskLine(line_to(address), batch, name, channel, stage, can_stop)
