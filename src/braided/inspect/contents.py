"""Who reads the state of a step: the one place that goes by the name of its encoding."""

from __future__ import annotations

from collections.abc import Callable

from braided.errors import UnsupportedError
from braided.kinds.aggregate.contents import AggregateContents
from braided.kinds.columnar.contents import ColumnContents
from braided.kinds.operator.contents import OperatorContents
from braided.kinds.processor.contents import ProcessorContents
from braided.store.codec_names import ARROW_FIELDS, COLUMNS, RECORDS, VARIABLES
from braided.store.history.manifest import OperatorMeta
from braided.tasks.contents import StateReader

__all__ = ["reader_of"]

_READERS: dict[str, Callable[[str, OperatorMeta], StateReader]] = {
    RECORDS: OperatorContents,
    COLUMNS: AggregateContents,
    VARIABLES: ProcessorContents,
    ARROW_FIELDS: ColumnContents,
}


def reader_of(operator: str, meta: OperatorMeta) -> StateReader:
    """Who reads an operator's state; refuses what is unknown."""
    if meta.codec not in _READERS:
        raise UnsupportedError(
            f"operator {operator!r} keeps its state as {meta.codec}, which this version of "
            "Braided can't show as rows"
        )
    return _READERS[meta.codec](operator, meta)
