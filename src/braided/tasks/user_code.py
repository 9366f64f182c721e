"""A user's code in a task: it is started before its first key, stopped after the last, and what it
raises is told with the key, the row and the batch that it happened at.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from braided.errors import BraidedError, OutputSchemaError, StateValueError
from braided.tasks.channel import Channel
from braided.tasks.failure import Words, located, operator_failure, user_lines
from braided.tasks.user_lines import lines_of

__all__ = ["UserCode", "UserRuntime"]

log = logging.getLogger("braided")


class UserRuntime(Protocol):
    """What runs the code of one kind."""

    def start(self) -> None:
        """Opens what the code needs, if that was not done; called before every slot."""

    def stop(self) -> None:
        """Closes what `start` opened."""

    def code(self) -> Any:
        """The class or function that the user wrote."""

    def advice(self, error: BaseException) -> str | None:
        """A sentence on an error whose own message does not say what to do, or None."""


class UserCode:
    """The code of one step in one task."""

    def __init__(self, runtime: UserRuntime, channel: Channel) -> None:
        self._runtime = runtime
        self._name = channel.name
        self._batch = channel.batch.batch

    def failure(self, error: Exception, key: Any, row: Any) -> BraidedError:
        """What to raise for an error that came out of the code, or of what it gave."""
        if isinstance(error, OutputSchemaError | StateValueError) and not error.is_located:
            field = error.field if isinstance(error, StateValueError) else None
            lines = user_lines(error) or lines_of(self._runtime.code(), field)
            return located(error, key, row, self._batch, lines)
        if isinstance(error, BraidedError):
            return error
        advice = self._runtime.advice(error)
        return operator_failure(error, self._name, key, row, self._batch, advice)

    def start(self) -> None:
        try:
            self._runtime.start()
        except Exception as error:
            raise self.failure(error, None, Words("onOpen, before the first key")) from None

    def stop(self) -> None:
        try:
            self._runtime.stop()
        except Exception as error:
            raise self.failure(error, None, Words("onClose, after the last key")) from None

    def abandon(self) -> None:
        """The task has failed, or nobody wants its output: lets go of what the code opened."""
        try:
            self._runtime.stop()
        except Exception:
            # The error that ended the task is the one to show.
            log.warning("onClose of %s raised as well", self._name, exc_info=True)
