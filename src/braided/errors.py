"""Every error Braided raises on purpose, one kind per thing the caller does next.

BraidedError
├── DefinitionError            change the program: it is refused before anything runs
│   ├── OperatorDefinitionError    the Operator class itself
│   ├── OptionError                an option's name or value
│   └── UnsupportedError           a call that has no meaning on a keyed, per-batch stream
├── WorkerPythonError          set PYSPARK_PYTHON: Spark's workers can't run Braided's tasks
├── QueryStoppedError          start the query again: it runs no more
├── MigrationError             ask again: the query can't be moved now, and goes on as it is
├── NoEarlierTableError        go back fewer steps: no routing table is known from so long ago
├── CheckpointError            look at the checkpoint: the query refuses to touch it
│   ├── CheckpointMismatchError    it belongs to another flow, or the flow has changed
│   ├── CheckpointCorruptError     a file is damaged or missing
│   ├── CheckpointVersionError     a newer Braided wrote it
│   ├── CheckpointWriteError       it can't be written: read-only, full, no permission
│   ├── CheckpointReadError        it can't be reached or read: no network, no permission
│   ├── StateNotFoundError         it has no such operator, or no longer that version
│   ├── LateWriteError             start the query again: one that it took over from wrote late
│   └── FencedError                another query holds it
├── PublishError               put right what it names and start the query again, which publishes
└── BatchError                 a batch failed; nothing of it was committed
    ├── OperatorError              user code raised
    ├── OutputSchemaError          a row does not fit the declared output schema, or its table
    ├── StateValueError            a value does not fit its state field's type
    ├── WorkerLostError            a worker process died, each time it was tried
    ├── ChannelMissingError        Spark finished without every channel reporting
    └── NondeterministicBatchError two attempts of one channel disagree
"""

from __future__ import annotations

__all__ = [
    "BatchError",
    "BraidedError",
    "ChannelMissingError",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointReadError",
    "CheckpointVersionError",
    "CheckpointWriteError",
    "DefinitionError",
    "FencedError",
    "LateWriteError",
    "MigrationError",
    "NoEarlierTableError",
    "NondeterministicBatchError",
    "OperatorDefinitionError",
    "OperatorError",
    "OptionError",
    "OutputSchemaError",
    "PublishError",
    "QueryStoppedError",
    "StateNotFoundError",
    "StateValueError",
    "UnsupportedError",
    "WorkerLostError",
    "WorkerPythonError",
    "start_anew",
]


class BraidedError(Exception):
    """Base of all errors raised by Braided."""


class DefinitionError(BraidedError):
    """The program asks for something that can't run; nothing was started."""


class OperatorDefinitionError(DefinitionError, TypeError):
    """An Operator class that can't be used, named by class and field."""


class OptionError(DefinitionError, ValueError):
    """An unknown option or a value it does not take."""


class UnsupportedError(DefinitionError, NotImplementedError):
    """A call that has no meaning, or no support, where it stands in a flow."""


class WorkerPythonError(BraidedError, RuntimeError):
    """Spark's workers run a Python that can't run Braided's tasks; nothing was started."""


class QueryStoppedError(BraidedError, RuntimeError):
    """Something was asked of a query that runs no more."""


class MigrationError(BraidedError, RuntimeError):
    """A query can't be moved to other executors now; it goes on where it is."""


class NoEarlierTableError(BraidedError, LookupError):
    """A query was told to go back further than the routing tables that are known."""


class CheckpointError(BraidedError):
    """The checkpoint can't be used as it is."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint was written by a flow that this one does not continue."""


class CheckpointCorruptError(CheckpointError):
    """A durable file is damaged or missing."""


class CheckpointVersionError(CheckpointError):
    """The checkpoint's format is newer than this Braided."""


class CheckpointWriteError(CheckpointError, OSError):
    """The checkpoint can't be written."""


class CheckpointReadError(CheckpointError, OSError):
    """The checkpoint can't be read, and whether something is there can't be told."""


class StateNotFoundError(CheckpointError, LookupError):
    """The checkpoint has no such operator, or does not retain that version."""


class LateWriteError(CheckpointError):
    """A query that was taken over from has written to Spark's part of the checkpoint late."""


class FencedError(CheckpointError):
    """Another query holds, or has taken over, this checkpoint."""


class PublishError(BraidedError):
    """A batch is committed and its output can't be made visible now; nothing of it is lost."""


class BatchError(BraidedError):
    """A batch failed and nothing of it was committed."""


class OperatorError(BatchError):
    """User code raised while processing a row, a batch or a timer of one key."""


class OutputSchemaError(BatchError, TypeError):
    """A row that was given out does not fit the declared schema, or the table that it is for."""

    is_located = False
    """Whether it says itself of which key that is."""

    index = 0
    """Which of the rows that were encoded together it is."""


class StateValueError(BatchError, TypeError):
    """A value put into a state field does not fit the field's type."""

    is_located = False
    """Whether it says itself of which key that is."""

    field: str | None = None
    """The name of the state field, where it is known."""


class WorkerLostError(BatchError):
    """A worker process died, each time the batch was tried."""


class ChannelMissingError(BatchError):
    """Spark finished the job but a channel did not report."""


class NondeterministicBatchError(BatchError):
    """Two attempts of one channel of one batch produced different results."""


def start_anew(operator: str) -> str:
    """What helps where an operator can't go on with the state that its checkpoint has."""
    return (
        f"give the operator another name and drop the state of this one with "
        f'.option("braided.dropOperators", "{operator}"), or use a new checkpointLocation'
    )
