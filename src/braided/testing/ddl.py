"""Schemas written as text ("id string, value double"), read without a Spark session.

Spark parses them in the JVM, which a test of an operator does not start. This reads the types that
columns usually have; for others there is `StructType`.
"""

from __future__ import annotations

import re

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from braided.errors import DefinitionError

__all__ = ["parse_schema"]

_NAMED: dict[str, DataType] = {
    "boolean": BooleanType(),
    "tinyint": ByteType(),
    "byte": ByteType(),
    "smallint": ShortType(),
    "short": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "bigint": LongType(),
    "long": LongType(),
    "float": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "decimal": DecimalType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ltz": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|\w+|[<>(),:])")


def parse_schema(schema: StructType | str) -> StructType:
    """The schema, from text if it is text."""
    return schema if isinstance(schema, StructType) else _Parser(schema).schema()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise self._refused(text[place:])
            self._tokens.append(found[1])
            place = found.end()
        self._tokens.append("")

    def schema(self) -> StructType:
        fields = self._fields("")
        return StructType(fields)

    def _fields(self, end: str) -> list[StructField]:
        fields: list[StructField] = []
        while self._tokens[0] != end or not fields:
            if fields:
                self._take(",")
            name = self._take()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            if self._tokens[0] == ":":
                self._take()
            kind = self._type()
            nullable = True
            if [word.lower() for word in self._tokens[:2]] == ["not", "null"]:
                self._take()
                self._take()
                nullable = False
            fields.append(StructField(name, kind, nullable))
        return fields

    def _type(self) -> DataType:
        name = self._take().lower()
        if name == "array":
            self._take("<")
            item = self._type()
            self._take(">")
            return ArrayType(item)
        if name == "map":
            self._take("<")
            key = self._type()
            self._take(",")
            value = self._type()
            self._take(">")
            return MapType(key, value)
        if name == "struct":
            self._take("<")
            fields = self._fields(">")
            self._take(">")
            return StructType(fields)
        if name == "decimal" and self._tokens[0] == "(":
            self._take("(")
            precision = int(self._take())
            scale = 0
            if self._tokens[0] == ",":
                self._take(",")
                scale = int(self._take())
            self._take(")")
            return DecimalType(precision, scale)
        if name not in _NAMED:
            raise self._refused(name)
        return _NAMED[name]

    def _take(self, wanted: str | None = None) -> str:
        token = self._tokens.pop(0)
        if not token or (wanted is not None and token != wanted):
            raise self._refused(token or "the end")
        return token

    def _refused(self, at: str) -> DefinitionError:
        return DefinitionError(
            f"the schema {self._text!r} is not understood at {at!r} without Spark; write it like "
            "'id string, value double', or give a StructType"
        )
