"""`braided.connect(a, b)`: one operator, one state per key, two inputs."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from braided.api.grouped import GroupedStream, check_operator, check_time_mode
from braided.api.schemas import empty_frame
from braided.api.stream import Stream
from braided.errors import DefinitionError
from braided.flow.graph import Keyed, Side
from braided.flow.two_sided import joint_keys, joint_schema
from braided.kinds.operator.first_state import check_initial
from braided.kinds.operator.step import OperatorStep
from braided.operator.definition import Operator

__all__ = ["Connected", "connect"]


def connect(left: GroupedStream[Stream], right: GroupedStream[Stream]) -> Connected:
    """Brings two streams together by key.

    The rows of a key come in one order: that of the input where both sides are made from one
    stream, and of two rows that tie, the left one first. Of two streams, the left one's rows of a
    batch come first, unless braided.orderBy names a column of both to go by.
    """
    for side in (left, right):
        if not isinstance(side, GroupedStream):
            raise DefinitionError(
                f"connect takes two grouped streams, a.groupBy(...) and b.groupBy(...), not "
                f"{type(side).__name__}"
            )
    keys = [side._grouping.key_schema for side in (left, right)]
    types = [[field.dataType for field in key.fields] for key in keys]
    if types[0] != types[1]:
        raise DefinitionError(
            f"connect: the left side is grouped by {keys[0].simpleString()} and the right side by "
            f"{keys[1].simpleString()}; the types must be the same: cast the columns of one"
        )
    return Connected(left, right)


class Connected:
    """Two grouped streams."""

    def __init__(self, left: GroupedStream[Stream], right: GroupedStream[Stream]) -> None:
        self._sides = (left, right)

    def apply(
        self,
        operator: type[Operator],
        schema: StructType | str,
        timeMode: str = "ProcessingTime",
        initialState: DataFrame | None = None,
    ) -> Stream:
        """Runs an `Operator` class with `onLeft` and `onRight` for every key of either side."""
        check_operator(operator)
        for hook, wanted in (("onLeft", True), ("onRight", True), ("onRow", False)):
            if hasattr(operator, hook) != wanted:
                raise DefinitionError(
                    f"{operator.__name__} {'has no' if wanted else 'has'} {hook}; an operator of "
                    "two inputs has onLeft(row) and onRight(row)"
                )
        check_time_mode(timeMode)
        left, right = (side._grouping for side in self._sides)
        shape = empty_frame(left.shape.sparkSession, schema, "the output schema")
        sides = (left.schema, right.schema)
        if initialState is not None:
            check_initial(initialState, operator, left.key_schema)
        step = OperatorStep(
            name=operator.__name__,
            operator=operator,
            keys=joint_keys(len(left.key_schema.fields)),
            key_schema=left.key_schema,
            input=joint_schema(left.key_schema, sides),
            output=shape.schema,
            time_mode=timeMode,
            initial=initialState,
            sides=sides,
        )
        inputs = tuple(Side(side._node, side._grouping.keys) for side in self._sides)
        return Stream(Keyed(step, inputs), shape)
