"""`braided.connect(a, b)`: one operator, one state per key, two inputs."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from braided.api.stream import TIME_MODES, GroupedStream, Stream, output_shape
from braided.errors import DefinitionError
from braided.flow.graph import Keyed, Side
from braided.flow.two_sided import joint_keys, joint_schema
from braided.kinds.operator.first_state import check_initial
from braided.kinds.operator.step import OperatorStep
from braided.operator.definition import Operator

__all__ = ["Connected", "connect"]


def connect(left: GroupedStream, right: GroupedStream) -> Connected:
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
    kinds = [[field.dataType for field in side._key.fields] for side in (left, right)]
    if kinds[0] != kinds[1]:
        raise DefinitionError(
            f"connect: the left side is grouped by {left._key.simpleString()} and the right side "
            f"by {right._key.simpleString()}; the types must be the same: cast the columns of one"
        )
    return Connected(left, right)


class Connected:
    """Two grouped streams."""

    def __init__(self, left: GroupedStream, right: GroupedStream) -> None:
        self._sides = (left, right)

    def apply(
        self,
        operator: type[Operator],
        schema: StructType | str,
        timeMode: str = "ProcessingTime",
        initialState: DataFrame | None = None,
    ) -> Stream:
        """Runs an `Operator` class with `onLeft` and `onRight` for every key of either side."""
        if not (isinstance(operator, type) and issubclass(operator, Operator)):
            raise DefinitionError(
                f"apply takes a class derived from braided.Operator, not {operator!r}"
            )
        for hook, given in (("onLeft", True), ("onRight", True), ("onRow", False)):
            if hasattr(operator, hook) != given:
                raise DefinitionError(
                    f"{operator.__name__} {'has no' if given else 'has'} {hook}; an operator of "
                    "two inputs has onLeft(row) and onRight(row)"
                )
        if timeMode not in TIME_MODES:
            raise DefinitionError(f"timeMode is {timeMode!r}; it takes {' or '.join(TIME_MODES)}")
        left, right = self._sides
        shape = output_shape(left._stream, schema)
        sides = (left._stream.schema, right._stream.schema)
        if initialState is not None:
            check_initial(initialState, operator, left._key)
        step = OperatorStep(
            name=operator.__name__,
            operator=operator,
            keys=joint_keys(len(left._key.fields)),
            key_schema=left._key,
            input=joint_schema(left._key, sides),
            output=shape.schema,
            time_mode=timeMode,
            initial=initialState,
            sides=sides,
        )
        inputs = tuple(Side(side._stream._node, side._keys) for side in self._sides)
        return Stream(Keyed(step, inputs), shape)
