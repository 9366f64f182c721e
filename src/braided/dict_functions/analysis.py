"""Recognises a function whose only memory is dicts that it indexes by one expression of the row.

Such a function is a keyed operator already: what it does with a row depends on the row and on the
entries under the row's key, and it changes nothing else. Then it makes no difference whether all
keys share the dicts or each key has dicts of its own, and that is all `braided.managed` needs.

A function without memory is what `purity.py` recognises. Here the state dicts come in: every use
of one is `d[key]` (read, written, deleted), `key in d`, `d.get(key)`, `d.pop(key)` or
`d.setdefault(key)`, and each key is the same: a field of the row or a tuple of fields, maybe by
way of a local name that is bound once.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Row

from braided.dict_functions import outside
from braided.dict_functions.purity import NO_VALUE, Reading, Shared, check_class, root_of
from braided.dict_functions.source import Definition, definition_of
from braided.errors import OperatorDefinitionError

__all__ = ["Analysis", "recognise"]

_DICTS = (dict, defaultdict, OrderedDict, Counter)
_KEYED_METHODS = ("get", "pop", "setdefault")
_ADVICE = (
    "a state dict is used at the row's key only: d[key], key in d, d.get(key), d.pop(key), "
    "d.setdefault(key)"
)


@dataclass(frozen=True)
class Analysis:
    """What the analysis found out about a function."""

    definition: Definition
    key: tuple[str, ...]
    """The fields of the row that make the key."""
    single: bool
    """Whether the key is the one field itself, and not a tuple."""
    dicts: dict[str, dict[Any, Any]]
    """The state dicts by the names that the function has for them, in order of appearance."""
    shared: Shared

    def check_values(self, classes: set[type]) -> None:
        """Refuses classes of state values whose methods have a memory of their own."""
        for cls in classes:
            check_class(cls, self.definition, None, self.shared)


def recognise(function: Any) -> Analysis:
    """Shows that a function is a keyed operator, or says at which line it is not."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        code = function.__code__
        raise OperatorDefinitionError(
            f"{code.co_filename}:{code.co_firstlineno}: {function.__name__} is async; write a "
            "plain function"
        )
    definition = definition_of(function)
    reading = _KeyedReading(definition, _row_parameter(definition))
    reading.run()
    return reading.result()


class _KeyedReading(Reading):
    """The walk through the managed function itself."""

    def __init__(self, definition: Definition, row: str) -> None:
        super().__init__(definition, Shared())
        self.row = row
        self.dicts: dict[str, dict[Any, Any]] = {}
        self.key: tuple[ast.expr, ast.AST] | None = None
        self._never_written: list[tuple[str, ast.AST]] = []

    def run(self) -> None:
        self._find_states()
        if self.names.count[self.row] > 1:
            again = self.names.last[self.row]
            self.refuse(again, f"binds {self.row} again, which is the row; use another name")
        super().run()

    def result(self) -> Analysis:
        for name, node in self._never_written:
            self.refuse(
                node,
                f"reads {name}, which is empty and never written to here; what other code puts "
                "into it would not be seen",
            )
        if self.key is None:
            self.refuse(
                None,
                "has no dict that it indexes by a field of the row and writes to, so there is no "
                "state to manage; filter, select or mapInArrow do without an operator",
            )
        fields, single = self._fields(self.key[0])
        return Analysis(self.definition, fields, single, self.dicts, self.shared)

    # -- the dicts -------------------------------------------------------------------------

    def _find_states(self) -> None:
        """State dicts are those that are written to; others are only looked up in."""
        uses: dict[str, list[tuple[ast.AST, bool]]] = {}
        for name, node, writes in _uses(self.definition.node):
            if name not in self.names.count and type(self.value(name)) in _DICTS:
                makes = isinstance(node, ast.Subscript) and type(self.value(name)) is defaultdict
                uses.setdefault(name, []).append((node, writes or makes))
        seen: dict[int, str] = {}
        for name, occurrences in uses.items():
            value, node = self.value(name), occurrences[0][0]
            written = any(writes for _, writes in occurrences)
            if value and not written:
                continue
            if id(value) in seen:
                self.refuse(node, f"{name} and {seen[id(value)]} are one dict; use one name")
            if value:
                self.refuse(
                    node,
                    f"{name} has entries already, and the state of a key starts with none; make "
                    "it empty, and set what a key starts with where its first row is seen",
                )
            seen[id(value)] = name
            self.dicts[name] = value
            if not written:
                self._never_written.append((name, node))
        self.shared.states.update(seen)

    def _state(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self.dicts

    def static(self, node: ast.AST) -> Any:
        return NO_VALUE if self._state(node) else super().static(node)

    def visit_Name(self, node: ast.Name) -> None:
        if self._state(node):
            self.refuse(node, f"is used as a whole; {_ADVICE}")
        super().visit_Name(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._state(node.value):
            self.refuse(node, f"is not at one key; {_ADVICE}")
        super().visit_Attribute(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if self._state(node.value):
            self._access(node, node.slice)
        else:
            super().visit_Subscript(node)

    def visit_Call(self, node: ast.Call) -> None:
        if any(map(self._state, node.args)):
            self.refuse(node, f"is given a state dict as a whole; {_ADVICE}")
        func = node.func
        if not (isinstance(func, ast.Attribute) and self._state(func.value)):
            super().visit_Call(node)
            return
        if func.attr not in _KEYED_METHODS:
            self.refuse(node, f"is not at one key; {_ADVICE}")
        if not node.args or isinstance(node.args[0], ast.Starred):
            self.refuse(node, f"does not show its key; {_ADVICE}")
        self._access(node, node.args[0])
        for argument in (*node.args[1:], *node.keywords):
            self.visit(argument)

    def membership(self, node: ast.Compare, left: ast.expr, right: ast.expr) -> set[ast.expr]:
        if self._state(right):
            self._access(node, left)
            return {left, right}
        return super().membership(node, left, right)

    def iterated(self, node: ast.expr) -> None:
        if self._state(node):
            self.refuse(node, f"is gone through over all keys; {_ADVICE}")
        super().iterated(node)

    def check_target(self, node: ast.Attribute | ast.Subscript) -> None:
        root = root_of(node)
        if self._is_row(root):
            self.refuse(node, "changes the row; make a new dict or Row of it")
        if not self._state(root):
            super().check_target(node)

    # -- the key ---------------------------------------------------------------------------

    def _access(self, node: ast.AST, index: ast.expr) -> None:
        """Notes that a state dict is used under this index; it has to be the key."""
        if self.inner:
            self.refuse(
                node,
                "uses a state dict in a function inside the function, which could be called at "
                "any time; read it into a local variable before",
            )
        fields = self._fields(index, node)
        if self.key is None:
            self.key = index, node
        elif self._fields(self.key[0]) != fields:
            first = self.key[1]
            self.refuse(
                node,
                f"is under {ast.unparse(index)}, but `{ast.unparse(first)}` in line "
                f"{getattr(first, 'lineno', 0)} is under {ast.unparse(self.key[0])}; all state of "
                "a managed function has one key",
            )

    def _fields(self, index: ast.expr, node: ast.AST | None = None) -> tuple[tuple[str, ...], bool]:
        """The fields of the row that an index is made of, and whether it is one field itself."""
        resolved = self.names.resolve(index)
        if isinstance(resolved, ast.Tuple) and resolved.elts:
            parts = [self._field(element, index, node) for element in resolved.elts]
            return tuple(parts), False
        return (self._field(resolved, index, node),), True

    def _field(self, part: ast.expr, index: ast.expr, node: ast.AST | None) -> str:
        part = self.names.resolve(part)
        shown = node or index
        if isinstance(part, ast.Attribute | ast.Subscript) and self._is_row(part.value):
            if isinstance(part, ast.Attribute):
                if hasattr(Row, part.attr) or part.attr.startswith("__"):
                    self.refuse(
                        shown,
                        f"has the key {ast.unparse(part)}, which is a method of rows; write "
                        f"{self.row}[{part.attr!r}] for the column",
                    )
                return part.attr
            if isinstance(part.slice, ast.Constant) and isinstance(part.slice.value, str):
                return part.slice.value
        why = f"has the key {ast.unparse(index)}, which is not a field of the row"
        if isinstance(part, ast.Name) and self.names.count[part.id] > 1:
            why += f": {part.id} is bound more than once"
        self.refuse(
            shown,
            f"{why}; index by {self.row}.name or a tuple of such fields, and compute anything "
            "else in a column before the operator",
        )

    def _is_row(self, node: ast.expr) -> bool:
        node = self.names.resolve(node)
        return isinstance(node, ast.Name) and node.id == self.row


def _row_parameter(definition: Definition) -> str:
    args = definition.node.args
    positional = [*args.posonlyargs, *args.args]
    needed = len(positional) - len(args.defaults)
    open_ended = args.vararg or args.kwarg
    if needed != 1 or open_ended or any(default is None for default in args.kw_defaults):
        definition.refuse(None, "has to be callable as name(row), with one parameter and no *args")
    return positional[0].arg


def _uses(function: ast.FunctionDef) -> Iterator[tuple[str, ast.AST, bool]]:
    """Names in the order in which they are used, each with whether its object is written to."""
    inside: set[ast.expr] = set()
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.expr)]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset, -(node.end_col_offset or 0)))
    for node in nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            inside.add(node.value)
            yield node.value.id, node, not isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            inside.add(node.value)
            yield node.value.id, node, node.attr not in outside.READ_METHODS
        elif isinstance(node, ast.Name) and node not in inside:
            yield node.id, node, False
