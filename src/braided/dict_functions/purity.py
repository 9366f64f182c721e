"""Reads a function and shows that it has no memory: it changes nothing outside itself.

What is allowed is known, the rest is refused. Names from outside stand for something without memory
(`outside.py`); functions and classes of the user are read in the same way. Nothing from outside is
assigned to: no `global`, no `nonlocal`, no item or attribute. What is local may be changed freely,
and that includes what the arguments hold.
"""

from __future__ import annotations

import ast
import builtins
import dis
import enum
import inspect
import types
from dataclasses import dataclass, field
from typing import Any, NoReturn

from braided.dict_functions import outside
from braided.dict_functions.names import Bindings
from braided.dict_functions.source import Definition, definition_of
from braided.errors import OperatorDefinitionError

__all__ = ["NO_VALUE", "Reading", "Shared", "check_class", "root_of"]

NO_VALUE = object()

_REFUSED_NODES: dict[type[ast.AST], str] = {
    ast.Global: "assigns a variable outside the function; keep it in a dict under the row's key",
    ast.Nonlocal: "assigns a variable outside the function; keep it in a dict under the row's key",
    ast.Import: "imports inside the function; import at the top of the module",
    ast.ImportFrom: "imports inside the function; import at the top of the module",
    ast.ClassDef: "defines a class inside the function; define it at the top of the module",
    ast.Await: "is async; write a plain function",
    ast.AsyncFor: "is async; write a plain function",
    ast.AsyncWith: "is async; write a plain function",
    ast.AsyncFunctionDef: "is async; write a plain function",
    ast.TryStar: "is not analysed; use a plain except",
}
_OUTSIDE = "changes something outside the function; keep it in a dict under the row's key"


@dataclass
class Shared:
    """What the readings of a function and of all that it uses have in common."""

    states: dict[int, str] = field(default_factory=dict)
    """Names of the state dicts by identity; nothing but the managed function may touch them."""
    done: set[Any] = field(default_factory=set)
    """Functions and classes that were read, or are being read."""


class Reading(ast.NodeVisitor):
    """One walk through one function."""

    def __init__(self, definition: Definition, shared: Shared) -> None:
        self.definition = definition
        self.shared = shared
        self.names = Bindings(definition.node)
        self.inner = 0
        """How many nested functions and lambdas we are in."""

    def refuse(self, node: ast.AST | None, reason: str) -> NoReturn:
        self.definition.refuse(node, reason)

    def run(self) -> None:
        function, node = self.definition.function, self.definition.node
        for part in ast.walk(node):
            if type(part) in _REFUSED_NODES:
                self.refuse(part, _REFUSED_NODES[type(part)])
        self._check_parameters()
        for name in sorted(_from_outside(function.__code__) & self.names.count.keys()):
            self.refuse(
                self.names.first[name],
                f"binds {name}, which elsewhere in the function is a name from outside; rename one",
            )
        for statement in node.body:
            self.visit(statement)

    def _check_parameters(self) -> None:
        function, args = self.definition.function, self.definition.node.args
        named = {arg.arg: node for arg, node in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
        defaults = [
            *zip(args.defaults, function.__defaults__ or (), strict=True),
            *((named[name], value) for name, value in (function.__kwdefaults__ or {}).items()),
        ]
        for node, value in defaults:
            if not outside.is_immutable(value):
                self.refuse(node, "is a default that all calls share and that could change")

    # -- values from outside ---------------------------------------------------------------

    def value(self, name: str) -> Any:
        """What a name from outside stands for now."""
        function = self.definition.function
        free = function.__code__.co_freevars
        if name in free:
            assert function.__closure__ is not None
            try:
                return function.__closure__[free.index(name)].cell_contents
            except ValueError:
                return NO_VALUE
        if name in function.__globals__:
            return function.__globals__[name]
        return getattr(builtins, name, NO_VALUE)

    def static(self, node: ast.AST) -> Any:
        """The value of a name from outside, or of an attribute of a module or class from there."""
        value = NO_VALUE
        if isinstance(node, ast.Name) and node.id not in self.names.count:
            value = self.value(node.id)
            if value is NO_VALUE:
                self.refuse(node, "is not defined; define it before braided.managed is called")
        elif isinstance(node, ast.Attribute):
            base = self.static(node.value)
            if isinstance(base, types.ModuleType | type):
                value = getattr(base, node.attr, NO_VALUE)
                if value is NO_VALUE:
                    self.refuse(node, "does not exist")
        if id(value) in self.shared.states:
            self.refuse(node, f"touches the state dict {self.shared.states[id(value)]}")
        for cls in outside.user_classes(value):
            check_class(cls, self.definition, node, self.shared)
        return value

    def _use(self, node: ast.AST, value: Any) -> None:
        """A value from outside is used: kept, passed on or called."""
        if outside.is_immutable(value) or outside.known_code(value):
            return
        if isinstance(value, types.FunctionType) and outside.why_not_code(value) is None:
            _check_function(value, self.definition, node, self.shared)
        elif isinstance(value, type) and outside.why_not_code(value) is None:
            check_class(value, self.definition, node, self.shared)
        elif isinstance(value, types.ModuleType):
            self.refuse(node, "is a module, and passing it on hides what is used of it")
        elif outside.is_read_only(value):
            self.refuse(
                node,
                f"is a {type(value).__name__} from outside that could be changed here; only look "
                "things up in it, or make it a tuple or frozenset",
            )
        else:
            why = outside.why_not_code(value) or (
                f"is a {type(value).__name__} from outside, which could have memory of its own; "
                "state is kept in dicts under the row's key"
            )
            self.refuse(node, why)

    # -- the walk --------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and node.id not in self.names.count:
            self._use(node, self.static(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr.startswith("__") and node.attr != "__name__":
            self.refuse(node, "reaches into Python's own machinery")
        if not isinstance(node.ctx, ast.Load):
            self.check_target(node)
            self.visit(node.value)
            return
        value = self.static(node)
        if value is not NO_VALUE:
            self._use(node, value)
            return
        if isinstance(self.static(node.value), types.FunctionType):
            self.refuse(node, "is an attribute of a function, which all keys share")
        self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.check_target(node)
            self.visit(node.value)
        elif not outside.is_read_only(self.static(node.value)):
            self.visit(node.value)
        self.visit(node.slice)

    def check_target(self, node: ast.Attribute | ast.Subscript) -> None:
        """Only what is local may be changed."""
        root = root_of(node)
        if not (isinstance(root, ast.Name) and root.id in self.names.count):
            self.static(root)  # says so if it is a state dict
            self.refuse(node, _OUTSIDE)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        done: set[ast.expr] = set()
        for left, operation, right in zip(operands, node.ops, node.comparators, strict=False):
            if isinstance(operation, ast.In | ast.NotIn):
                done |= self.membership(node, left, right)
            elif isinstance(operation, ast.Is | ast.IsNot):
                self._check_identity(node, left, right)
        for operand in operands:
            if operand not in done:
                self.visit(operand)

    def membership(self, node: ast.Compare, left: ast.expr, right: ast.expr) -> set[ast.expr]:
        """`left in right`; gives the operands that need no further look."""
        return {right} if outside.is_read_only(self.static(right)) else set()

    def _check_identity(self, node: ast.Compare, *sides: ast.expr) -> None:
        for side in sides:
            if isinstance(side, ast.Constant) and type(side.value) in (type(None), bool):
                return
            value = self.static(side)
            one_of_a_kind = isinstance(value, enum.Enum | type) or type(value) is object
            if value is not NO_VALUE and one_of_a_kind:
                return
        self.refuse(node, "asks for the same object, which state is not after a batch; use ==")

    def visit_Call(self, node: ast.Call) -> None:
        func = node.func
        arguments: list[ast.AST] = [*node.args, *node.keywords]
        if isinstance(func, ast.Attribute) and outside.is_read_only(self.static(func.value)):
            if func.attr not in outside.READ_METHODS:
                self.refuse(node, _OUTSIDE)
        else:
            value = self.static(func)
            self.visit(func)
            if value is getattr or value is hasattr:
                self._check_attribute_name(node)
            if any(value is reader for reader in outside.READERS):
                arguments = [a for a in arguments if not outside.is_read_only(self.static(a))]
        for argument in arguments:
            self.visit(argument)

    def _check_attribute_name(self, node: ast.Call) -> None:
        name = node.args[1] if len(node.args) > 1 else None
        plain = isinstance(name, ast.Constant) and not str(name.value).startswith("__")
        if not plain:
            self.refuse(node, "does not show which attribute it reads; write it out")

    def visit_For(self, node: ast.For) -> None:
        self.iterated(node.iter)
        for part in (node.target, *node.body, *node.orelse):
            self.visit(part)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        if node.is_async:
            self.refuse(node.iter, "is async; write a plain function")
        self.iterated(node.iter)
        for part in (node.target, *node.ifs):
            self.visit(part)

    def iterated(self, node: ast.expr) -> None:
        """`for ... in node`."""
        if not outside.is_read_only(self.static(node)):
            self.visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.inner += 1
        self.visit(node.args)
        self.visit(node.body)
        self.inner -= 1

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.inner += 1
        for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if part is not None:
                self.visit(part)
        for statement in node.body:
            self.visit(statement)
        self.inner -= 1

    def visit_arg(self, node: ast.arg) -> None:
        """Annotations of parameters are not run."""


def check_class(cls: type, definition: Definition, node: ast.AST | None, shared: Shared) -> None:
    """Refuses a user's class whose methods have a memory besides the object they are called on."""
    if outside.known_code(cls) or cls in shared.done:
        return
    shared.done.add(cls)

    def refuse(reason: str) -> NoReturn:
        definition.refuse(node, reason if node is not None else f"{cls.__name__} {reason}")

    for part in outside.class_parts(cls, refuse):
        _check_function(part, definition, node, shared)


def _check_function(
    function: types.FunctionType, definition: Definition, node: ast.AST | None, shared: Shared
) -> None:
    if function in shared.done:
        return
    shared.done.add(function)
    try:
        Reading(definition_of(function), shared).run()
    except OperatorDefinitionError as error:
        definition.refuse(node, f"uses {function.__qualname__}, which does not fit: {error}")


def root_of(node: ast.expr) -> ast.expr:
    """Where a chain of attributes, items and calls starts."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def _from_outside(code: types.CodeType) -> set[str]:
    """Names that a function or anything in it reads from the module or from functions around."""
    names = set(code.co_freevars)
    waiting = [code]
    while waiting:
        part = waiting.pop()
        for step in dis.get_instructions(part):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"):
                names.add(str(step.argval))
        waiting.extend(const for const in part.co_consts if inspect.iscode(const))
    return names
