"""An operator with two inputs: the rows of both in one frame.

__braided_side      0 left, 1 right
__braided_j0, ...   the grouping columns of either
__braided_l0, ...   the left row's columns, null in right rows
__braided_r0, ...   the right row's columns, null in left rows
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import ByteType, StructField, StructType

from braided.flow.graph import Keyed
from braided.flow.route import GroupingKeys
from braided.spark.sql_text import quoted
from braided.tasks.columns import order_columns

__all__ = ["joint_keys", "joint_schema", "united_sides"]

_SIDE = "__braided_side"


def joint_keys(width: int) -> GroupingKeys:
    """The grouping columns of the frame."""
    return GroupingKeys(tuple(f"__braided_j{i}" for i in range(width)))


def joint_schema(key: StructType, sides: tuple[StructType, ...]) -> StructType:
    """The columns of the frame."""
    fields = [StructField(_SIDE, ByteType(), False)]
    fields += [StructField(f"__braided_j{i}", f.dataType) for i, f in enumerate(key.fields)]
    for letter, side in zip("lr", sides, strict=True):
        fields += [
            StructField(f"__braided_{letter}{i}", f.dataType) for i, f in enumerate(side.fields)
        ]
    return StructType(fields)


def united_sides(node: Keyed, frames: list[DataFrame], order: int) -> DataFrame:
    """Both sides' rows, order columns first."""
    united = []
    for number, (frame, side) in enumerate(zip(frames, node.sides, strict=True)):
        own = [quoted(name) for name in frame.columns[order:]]
        hidden = side.keys.hidden()
        keyed = frame.select("*", *hidden) if hidden else frame
        keys = [f"{sql} AS __braided_j{i}" for i, sql in enumerate(side.keys.sql())]
        columns = [f"{name} AS __braided_{'lr'[number]}{i}" for i, name in enumerate(own)]
        united.append(
            keyed.selectExpr(
                *order_columns(order), f"tinyint({number}) AS {_SIDE}", *keys, *columns
            )
        )
    return united[0].unionByName(united[1], allowMissingColumns=True)
