"""The ways in which a task of an operator can go through its rows, as its run sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from braided.kinds.operator.hook import Hook
from braided.kinds.operator.key_runner import KeyRunner
from braided.kinds.operator.output import OperatorOutput
from braided.kinds.operator.program import Program
from braided.store.history.manifest import DeadFile
from braided.tasks.channel import Channel
from braided.tasks.order import Tag, Tags

__all__ = ["KeyGroup", "OperatorParts", "Way"]

KeyGroup: TypeAlias = tuple[int, int, int, bytes, Any]
"""A run of rows of one key: where it begins and ends, the slot, the key's bytes and its row."""


class OperatorParts(NamedTuple):
    """What a way is made with."""

    keys: KeyRunner
    hook: Hook
    output: OperatorOutput
    program: Program


class Way(Protocol):
    """Takes a channel's rows, chunk by chunk, to the operator, and what it gives out to the output.

    All ways come to the same end; they differ in what they can take back and in how fast they are.
    """

    def __init__(self, parts: OperatorParts) -> None: ...

    def run(
        self, rows: Any, tags: Tags | None, groups: Sequence[KeyGroup]
    ) -> Iterator[pa.RecordBatch]:
        """A chunk, as Rows or as a table. Its last key may go on in the next chunk."""

    def end(self) -> Iterator[pa.RecordBatch]:
        """There are no more rows; leaves no key open."""

    def fire(self, ms: int, order: tuple[Tag, int] | None) -> None:
        """Fires a timer of the open key; `order` has the tag and the first number of its output."""

    def write_dead(self, channel: Channel) -> DeadFile | None:
        """At the end: writes what was diverted, if anything."""
