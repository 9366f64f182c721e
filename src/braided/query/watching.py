"""Watches the tasks of a running batch: whether one channel will hold up all the others."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from statistics import median

from braided.control.early_cut import ChannelProgress, reason_to_cut
from braided.orders.messages import TaskWord

__all__ = ["Watch"]

log = logging.getLogger("braided")

_IN_A_ROW_MAX = 4
"""After so many batches that were cut one is whole, where watermarks or timers wait for that."""
_OVERHEADS_KEPT = 5


class Watch:
    """Takes what tasks tell, in a thread of its own, and says when to end a try of a batch."""

    def __init__(
        self,
        rows_of_stage: Callable[[int], int | None],
        end: Callable[[str, str], bool],
        has_timers: bool,
    ) -> None:
        """`rows_of_stage`: how many rows a stage has to do, if that is known. `end` is called with
        why, and the token of the try. `has_timers`: whether something waits for a whole batch.
        """
        self._rows_of_stage = rows_of_stage
        self._has_timers = has_timers
        self._end = end
        self._words: SimpleQueue[TaskWord | None] = SimpleQueue()
        self._channels: Mapping[str, int] = {}
        self._token = ""
        self._overheads_s: deque[float] = deque(maxlen=_OVERHEADS_KEPT)
        self._in_a_row = 0
        self._progress: dict[tuple[str, int], ChannelProgress] = {}
        self._rows: dict[int, int | None] = {}
        threading.Thread(target=self._run, name="braided watch", daemon=True).start()

    def hear(self, word: TaskWord) -> None:
        """How far a task is."""
        self._words.put(word)

    def began(self, token: str, channels: Mapping[str, int]) -> None:
        """A try of a batch begins, with so many channels by operator."""
        self._channels, self._token = channels, token

    def learn(self, batch_s: float, tasks_s: float, was_cut: bool) -> None:
        """A batch took so long, of which its slowest tasks so much; whether it was cut."""
        self._overheads_s.append(max(0.0, batch_s - tasks_s))
        self._in_a_row = self._in_a_row + 1 if was_cut else 0

    def close(self) -> None:
        self._words.put(None)

    def _run(self) -> None:
        token = ""
        while (word := self._words.get()) is not None:
            if word.token != self._token:
                continue  # of a try that is over
            if word.token != token:
                token = word.token
                self._progress.clear()
                self._rows.clear()
            self._progress[word.operator, word.channel] = ChannelProgress(
                word.rows, word.seconds, word.ended
            )
            try:
                self._judge(word)
            except Exception as error:
                # To end a batch is never needed: it goes on as it is.
                log.debug("the batch is not watched: %s", error)

    def _rows_of(self, stage: int) -> int | None:
        """Asks Spark once, which costs the driver some milliseconds."""
        if stage not in self._rows:
            self._rows[stage] = self._rows_of_stage(stage)
        return self._rows[stage]

    def _judge(self, word: TaskWord) -> None:
        count = self._channels.get(word.operator, 0)
        channels = [p for (name, _), p in self._progress.items() if name == word.operator]
        if all(channel.ended for channel in channels) or not any(c.ended for c in channels):
            return
        if self._has_timers and self._in_a_row >= _IN_A_ROW_MAX:
            return
        overhead_s = median(self._overheads_s) if self._overheads_s else 0.0
        reason = reason_to_cut(channels, count, lambda: self._rows_of(word.stage), overhead_s)
        if reason is None:
            return
        running = sum(not channel.ended for channel in channels)
        why = (
            f"{reason.rows_left} rows of {word.operator} were left on {running} of {count} "
            f"channels, for {reason.rest_s:.1f} s more at least; the others had taken "
            f"{reason.others_s:.1f} s"
        )
        if self._end(why, word.token):
            log.info("the batch ends early: %s", why)
