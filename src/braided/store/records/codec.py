"""The record of a key: its typed fields and pending timers, as bytes.

A record is one version byte and a msgpack array of the field values in order, with the tuple of
the key's pending timers (ms) as its last element. Loading and dumping happen once per key and
batch, so both are generated for the fields at hand: no loop, no lookup by name. The version is that
of the operator's fields in its checkpoint; a record of an earlier one takes another, slower way
(`old_records.py`).

A dumped record is decoded again before it leaves: msgspec encodes a `str` in an `int` field
without complaint, and the batch that made a bad value is the one that must fail. Where all values
are numbers, truth values or text of the very types of their fields, to look at the types is enough:
what of these can't be stored, msgspec refuses to encode.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec
import msgspec.inspect as mi
import numpy as np

from braided.errors import (
    CheckpointMismatchError,
    StateValueError,
)
from braided.store.durable.store import UNREADABLE
from braided.store.records.evolution import same_fields
from braided.store.records.field_types import (
    clear_caches,
    misfit,
    python_type,
    type_text,
)
from braided.store.records.old_records import OldRecords
from braided.store.records.short_repr import short_repr
from braided.store.records.state_fields import Field, StateFields, Upgrade

__all__ = ["StateCodec"]

# Sets iterate in an order that differs between processes; a sorted one makes two attempts of a
# task write the same bytes. Only for members that compare with each other.
_SORTABLE = (
    mi.BoolType,
    mi.IntType,
    mi.FloatType,
    mi.StrType,
    mi.BytesType,
    mi.DateType,
    mi.TimeDeltaType,
    mi.DecimalType,
    mi.UUIDType,
)


# Of these every value that can be encoded comes back as it was. Types with bounds are others.
_SAFE: list[mi.Type] = [mi.BoolType(), mi.IntType(), mi.FloatType(), mi.StrType()]


def _plain(value: Any) -> Any:
    """Numpy scalars turn up wherever a user computes with Arrow or numpy: store their value."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a value of type {type(value).__name__} can't be stored")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_sorting_encoder = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic")


class StateCodec(StateFields):
    """Loads the fields of one operator class from records and dumps them into records."""

    load: Callable[[Any, bytes | None], tuple[int, ...]]
    """`load(op, raw)` sets the fields of `op` (raw None: fresh defaults), returns its timers."""

    dump: Callable[[Any, tuple[int, ...]], bytes]
    """`dump(op, timers)` encodes and validates; raises StateValueError naming the field."""

    fresh: bytes
    """The record of a key that has only defaults and no timers."""

    version: int
    """Of the records that it dumps."""

    def __init__(
        self,
        operator: str,
        fields: Sequence[Field],
        upgrade: Upgrade | None = None,
        history: Sequence[str] = (),
    ) -> None:
        """`history` has the descriptions of all versions, the present one last, if known."""
        super().__init__(operator, fields, upgrade)
        self.version = len(history) or 1
        self._fitted: dict[tuple[str, ...], StateCodec] = {}
        kinds = [field.type for field in self.fields]
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            types.GenericAlias(tuple, (*kinds, tuple[int, ...]))
        )
        for field, info in zip(self.fields, self.infos, strict=True):
            self._check_default(field, info)
        defaults = (*(field.default for field in self.fields), ())
        self.fresh = bytes([self.version]) + _encoder.encode(defaults)
        self._old = OldRecords(self, self.fresh, history)
        self.load, self.dump = self._generate()
        clear_caches(self.classes())

    def at(self, history: Sequence[str]) -> StateCodec:
        """The codec for a checkpoint in which the fields have this history, the present last."""
        versions = tuple(history)
        if len(versions) <= 1 and self.version == 1:
            return self
        codec = self._fitted.get(versions)
        if codec is None:
            if not same_fields(versions[-1], self.describe()):
                raise ValueError(f"the history of {self.operator} does not end with its fields")
            codec = StateCodec(self.operator, self.fields, self.upgrade, versions)
            self._fitted[versions] = codec
        return codec

    def is_unchanged(self, old: bytes, record: bytes) -> bool:
        """Whether a record says the same as one of an earlier version."""
        op = types.SimpleNamespace()
        return self.dump(op, self.load(op, old)) == record

    # --- at definition ------------------------------------------------------------------------

    def _check_default(self, field: Field, info: mi.Type) -> None:
        try:
            decoded = msgspec.msgpack.decode(_encoder.encode(field.default), type=field.type)
            wrong = None if decoded == field.default else misfit(info, field.default)
        except Exception as error:
            path, value = misfit(info, field.default) or ("", field.default)
            raise self._default_refused(field, path, value, str(error)) from error
        if wrong:
            raise self._default_refused(field, *wrong, "")

    def _default_refused(self, field: Field, path: str, value: Any, why: str) -> Exception:
        part = f" ({field.name}{path})" if path else ""
        return self.refused(
            field,
            f"its default {short_repr(value)}{part} is a {type(value).__name__} and does not fit "
            f"the type {type_text(field.type)}{f' ({why})' if why else ''}",
        )

    # --- per key ------------------------------------------------------------------------------

    def _generate(self) -> tuple[Callable[..., Any], Callable[..., bytes]]:
        """Write out load and dump for these fields; names are identifiers, so this is safe."""
        scope: dict[str, Any] = {
            "fresh": self.fresh,
            "decode": self._decoder.decode,
            "encode": _encoder.encode,
            "sort": _sorting_encoder.encode,
            "Raw": msgspec.Raw,
            "UNREADABLE": UNREADABLE,
            "load_old": self._old.load,
            "unreadable": self._unreadable,
            "refuse": self._refuse_value,
        }
        targets = "".join(f"op.{field.name}, " for field in self.fields)
        values = "".join(f"v{i}, " for i in range(len(self.fields)))
        encoded, suspicions = "", f"decode(body) != ({values}timers,)"
        for i, info in enumerate(self.infos):
            if isinstance(info, mi.SetType | mi.FrozenSetType) and isinstance(
                info.item_type, _SORTABLE
            ):
                encoded += f"Raw(sort(v{i})), "
            else:
                encoded += f"v{i}, "
            # Equal is not enough: a defaultdict equals a dict, a tuple a NamedTuple, but they
            # would come back as those. (Numbers that are equal and decode as int are ints.)
            python = python_type(info)
            if python not in (None, bool, int, float):
                suspicions += f" or type(v{i}) is not t{i}"
                scope[f"t{i}"] = python
        if all(info in _SAFE for info in self.infos):
            kinds = [f"type(v{i}) is t{i}" for i in range(len(self.infos))]
            scope |= {f"t{i}": python_type(info) for i, info in enumerate(self.infos)}
            suspicions = f"not ({' and '.join(['not timers', *kinds])}) and ({suspicions})"
        source = f"""
def load(op, raw):
    if raw is None:
        raw = fresh
    elif raw[0] != {self.version}:
        return load_old(op, raw)
    try:
        {targets}timers, = decode(raw[1:])
    except UNREADABLE as error:
        unreadable(error)
    return timers

def dump(op, timers):
    try:
        {f"{values}= {targets}" if self.fields else ""}
        body = encode(({encoded}timers,))
        suspicious = {suspicions}
    except Exception as error:
        refuse(op, error)
    if suspicious:
        refuse(op, None)
    return {bytes([self.version])!r} + body
"""
        exec(compile(source, f"<codec of {self.operator}>", "exec"), scope)
        load, dump = scope["load"], scope["dump"]
        blank = types.SimpleNamespace()
        load(blank, None)
        # As dump writes it, so that a key that is as new can be told by its record.
        scope["fresh"] = self.fresh = dump(blank, ())
        return load, dump

    def _refuse_value(self, op: Any, error: Exception | None) -> None:
        """Name the field that does not fit; return if all do (NaN, a type without equality)."""
        for field, info in zip(self.fields, self.infos, strict=True):
            if not hasattr(op, field.name):
                deleted = StateValueError(
                    f"{self.operator}.{field.name} was deleted; assign a value of type "
                    f"{type_text(field.type)}, or call forget() to drop the key"
                )
                deleted.field = field.name
                raise deleted
            value = getattr(op, field.name)
            try:
                wrong = misfit(info, value)
                if wrong is None and error is not None:
                    msgspec.msgpack.decode(_encoder.encode(value), type=field.type)
            except RecursionError:
                raise self._unfit(field, "", value, "it is nested too deeply") from None
            except Exception as why:
                raise self._unfit(field, "", value, str(why)) from None
            if wrong:
                raise self._unfit(field, *wrong, "")
        if error is not None:
            raise StateValueError(f"the state of {self.operator} can't be stored: {error}")

    def _unfit(self, field: Field, path: str, value: Any, why: str) -> StateValueError:
        error = StateValueError(
            f"{self.operator}.{field.name}{path} holds {short_repr(value)} of type "
            f"{type(value).__name__}, which does not fit the field's type {type_text(field.type)}"
            f"{f': {why}' if why else _hint(value)}"
        )
        error.field = field.name
        return error

    def _unreadable(self, error: Exception) -> NoReturn:
        raise CheckpointMismatchError(
            f"a state record of {self.operator} does not fit its fields ({error}); were the "
            "fields of the class changed since the checkpoint was written?"
        ) from error


def _hint(value: Any) -> str:
    if type(value) is int and not -(2**63) <= value < 2**64:
        return ": integers are stored in 64 bits; use Decimal or str for larger ones"
    for plain in (dict, list, set, str, int, float):
        if isinstance(value, plain) and type(value) not in (plain, bool):
            return f": store a plain {plain.__name__}, a subclass would not come back as one"
    return ""
