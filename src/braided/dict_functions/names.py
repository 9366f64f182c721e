"""Which names a function binds, how often, and what those bound once stand for.

All scopes inside a function are taken as one: a name that a comprehension or a lambda binds as
well counts as bound twice. That refuses more than it must, and never takes two things for one.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

__all__ = ["Bindings"]


class Bindings:
    """The names bound anywhere in a function."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.count: Counter[str] = Counter()
        self.first: dict[str, ast.AST] = {}
        self.last: dict[str, ast.AST] = {}
        self._values: dict[str, ast.expr] = {}
        for name, node in _bound(function):
            self.count[name] += 1
            self.first.setdefault(name, node)
            self.last[name] = node
        for node in ast.walk(function):
            for target, value in _assigned(node):
                if isinstance(target, ast.Name) and self.count[target.id] == 1:
                    self._values[target.id] = value

    def resolve(self, node: ast.expr) -> ast.expr:
        """What a name that is bound once was assigned; any other expression as it is."""
        followed: set[str] = set()
        while True:
            if isinstance(node, ast.NamedExpr):
                node = node.value
            elif isinstance(node, ast.Name) and node.id in self._values:
                if node.id in followed:  # k = k
                    return node
                followed.add(node.id)
                node = self._values[node.id]
            else:
                return node


def _bound(function: ast.FunctionDef) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, node
        elif isinstance(node, ast.arg):
            yield node.arg, node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node is not function:
                yield node.name, node
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, node
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest, node


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Target and value of plain assignments, `a, b = x, y` taken apart."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
        return
    if not isinstance(value, ast.Tuple | ast.List) or len(target.elts) != len(value.elts):
        return
    if any(isinstance(part, ast.Starred) for part in (*target.elts, *value.elts)):
        return
    for part, assigned in zip(target.elts, value.elts, strict=True):
        yield from _pairs(part, assigned)
