"""Where a function is written: its syntax tree, what is around it, and its annotations.

The tree is worth something only if it is what runs. So the file is compiled again and the very
code of the function has to be found in it; a file that was edited after its import is refused.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from braided.errors import OperatorDefinitionError

__all__ = ["Definition", "definition_of", "enclosing_locals"]

_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag


@dataclass(frozen=True)
class Definition:
    """One `def` in its file."""

    function: types.FunctionType
    node: ast.FunctionDef
    around: tuple[ast.AST, ...]
    """What the `def` stands in, the module first."""

    def refuse(self, node: ast.AST | None, reason: str) -> NoReturn:
        """Raises an error that names file, line, the piece of code and why it does not fit."""
        line = getattr(node, "lineno", self.node.lineno)
        where = f"{self.function.__code__.co_filename}:{line}: {self.node.name}"
        shown = f"`{_short(node)}` " if node is not None else ""
        raise OperatorDefinitionError(f"{where}: {shown}{reason}")

    def annotation(self, name: str) -> Any:
        """The annotation of a variable that the function uses from outside; None without one."""
        if name in self.function.__code__.co_freevars:
            for scope in reversed(self.around):
                if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                    annotation = _annotated(scope, name)
                    if annotation is not None:
                        return ast.unparse(annotation)
            return None
        # What a notebook or a session has run before is not in this source, but remembered.
        remembered = self.function.__globals__.get("__annotations__", {})
        if name in remembered:
            return remembered[name]
        annotation = _annotated(self.around[0], name)
        return None if annotation is None else ast.unparse(annotation)

    def meaning(self, annotation: Any) -> Any:
        """The type that an annotation, maybe written as text, stands for."""
        holder = type("_", (), {"__annotations__": {"_": annotation}})
        local = enclosing_locals(self.function)
        hints = typing.get_type_hints(holder, self.function.__globals__, local, include_extras=True)
        return hints["_"]


def definition_of(function: Any) -> Definition:
    """Finds the `def` of a plain function, or refuses it with a sentence."""
    if not isinstance(function, types.FunctionType):
        raise OperatorDefinitionError(
            f"braided.managed takes a plain function of one row, not {_kind(function)}; "
            "write `def name(row): ...` around it"
        )
    code = function.__code__
    where = f"{code.co_filename}:{code.co_firstlineno}: {function.__name__}"
    if code.co_name == "<lambda>":
        raise OperatorDefinitionError(
            f"{where}: a lambda can't be told from others on its line; write a `def`"
        )
    if hasattr(function, "__wrapped__"):
        raise OperatorDefinitionError(
            f"{where}: it is wrapped by a decorator, so its source is not what runs; take the "
            "decorator off"
        )
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    if not text:
        raise OperatorDefinitionError(
            f"{where}: its source can't be read, and it is recognised by its source; put it into "
            "a file, or write a braided.Operator"
        )
    tree, compiled = _read(text, code.co_filename, code.co_flags & _FUTURES)
    path = next(_paths(tree, code), None)
    if path is None or not any(code == other for other in compiled):
        raise OperatorDefinitionError(
            f"{where}: the file no longer has the code that is loaded; start again, so that what "
            "is read is what runs"
        )
    return Definition(function, typing.cast("ast.FunctionDef", path[-1]), tuple(path[:-1]))


@lru_cache(maxsize=8)
def _read(text: str, name: str, flags: int) -> tuple[ast.Module, tuple[types.CodeType, ...]]:
    """The tree of a file and all code that is compiled of it, once for all functions in it."""
    try:
        tree = ast.parse(text)
        compiled = compile(text, name, "exec", flags=flags, dont_inherit=True)
    except SyntaxError:
        return ast.Module([], []), ()
    return tree, tuple(_codes(compiled))


def enclosing_locals(function: types.FunctionType) -> dict[str, Any]:
    """Local names of the functions around a function, as far as they are running."""
    names: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(1)
    while frame:
        around = f"{frame.f_code.co_qualname}.<locals>."
        if frame.f_globals is function.__globals__ and function.__qualname__.startswith(around):
            for key, value in frame.f_locals.items():
                names.setdefault(key, value)
        frame = frame.f_back
    return names


def _paths(tree: ast.AST, code: types.CodeType) -> Iterator[list[ast.AST]]:
    """Ways from the module down to each `def` with this name and first line."""
    waiting: list[list[ast.AST]] = [[tree]]
    while waiting:
        path = waiting.pop()
        node = path[-1]
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                yield path
        waiting.extend([*path, child] for child in ast.iter_child_nodes(node))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for const in code.co_consts:
        if inspect.iscode(const):
            yield const
            yield from _codes(const)


def _annotated(scope: ast.AST, name: str) -> ast.expr | None:
    """The annotation of a name in one scope: of a parameter, or of an assignment."""
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        args = scope.args
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs):
            if arg.arg == name and arg.annotation is not None:
                return arg.annotation
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if node.target.id == name:
                return node.annotation
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))
    return None


def _kind(value: Any) -> str:
    if inspect.ismethod(value):
        return f"the method {value.__qualname__}, whose object would be state"
    if inspect.isbuiltin(value):
        return f"the builtin {value.__name__}, which has no source"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a {type(value).__name__}"


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else text[:97] + "..."
