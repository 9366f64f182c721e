"""The rule of the house: which package may import which, and what stays where.

Four rules, each told with the import that breaks it:

order     a package imports only what its row of `MAY_IMPORT` names; the rows stand low to high
cycle     in every folder, modules and packages import each other in one direction only
no Spark  the packages in `PURE` do not reach PySpark or py4j, also not by way of other modules
below     what PySpark does not show is used in spark/ only, but for what `BELOW_SPARK` excuses

Imports are read, not run, wherever they stand in a file: inside functions, for the type checker
only, or by name, as a text that `import_module` is given. An `__init__` is a module of its folder
like the others. The one of the package itself, the face that users see, is a way only for who names
something in it.

`layers.py` checks, `layers.py --graph` prints the edges between packages, and
`layers.py --mermaid` prints the picture of the order that docs/architecture.md shows.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

__all__ = ["RULES", "Import", "Rules", "edges", "main", "mermaid", "modules", "violations"]

PACKAGE = "braided"
FACE = f"{PACKAGE} (its face)"
"""The package's own `__init__`, in the table of who may import whom."""

MAY_IMPORT: dict[str, str] = {
    "errors": "",
    "failpoints": "",
    "release": "",
    "store": "errors failpoints",
    "control": "",
    "orders": "errors",
    "migrate": "",
    "sim": "control",
    "option_values": "store control",
    "options": "errors store control option_values",
    "operator": "errors store",
    "dict_functions": "errors operator",
    "spark": "errors release store",
    "tasks": "errors failpoints store control orders spark",
    "flow": "errors store control orders spark tasks",
    "kinds": "errors store control orders operator spark tasks flow",
    "worker_daemon": "spark kinds",
    "sinks": "errors failpoints store spark",
    "inspect": "errors store spark tasks flow kinds",
    "hosts": "errors release store control orders options spark tasks",
    "steering": "errors store control orders options spark tasks flow kinds hosts",
    "query": "errors failpoints store control orders migrate options spark tasks flow sinks hosts"
    " steering",
    "api": "errors store control orders migrate options operator dict_functions spark tasks flow"
    " kinds worker_daemon sinks inspect query",
    "import_state": "errors store spark kinds",
    "plan_routing": "control spark query",
    "testing": "errors failpoints store control operator spark tasks flow kinds query api",
    FACE: "errors release operator dict_functions api testing",
    "workloads": f"operator {PACKAGE}",
    "bench": f"errors store control sim operator spark tasks flow worker_daemon query plan_routing"
    f" workloads {PACKAGE}",
    "cli": "errors store control sim spark kinds inspect api import_state plan_routing workloads"
    f" bench {PACKAGE}",
}
"""Each package and module of the top level, low to high, and what it may import."""

SPARK = ("pyspark", "py4j")
SPARK_VALUES = ("pyspark.sql.Row", "pyspark.sql.types")
"""Rows and types: values that need no Spark that runs."""
PURE: dict[str, tuple[str, ...]] = {
    "errors": (),
    "failpoints": (),
    "release": (),
    "store": (),
    "control": (),
    "orders": (),
    "migrate": (),
    "sim": (),
    "option_values": (),
    "options": (),
    "operator": SPARK_VALUES,
    "dict_functions": SPARK_VALUES,
}
"""The packages that are free of Spark, and what of it they may name all the same."""

HOME_BELOW_SPARK = "spark"
BELOW_MODULES = ("py4j", "pyspark.sql.classic")
BELOW_NAMES = ("_gateway", "_jc", "_jdf", "_jreader", "_jsc", "_jsparkSession", "_jsq", "_jvm")
BELOW_SPARK = {
    "api.aggregates": "reads a column's text to find session windows",
    "api.grouping": "reads a column's text to find plain names",
    "api.stream": "looks into a plan for event time",
    "kinds.aggregate.aggregation": "hands columns and frames on to spark/catalyst.py",
    "sinks.files": "hands its frame on to spark/jvm.py",
    "sinks.staged": "hands rows to Spark's memory sink without a way through Python",
    "steering.input_size": "asks a batch's plan for its size before it runs",
    "tasks.stage": "makes mapInArrow's function once and not once per batch",
}
"""Modules outside of spark/ that use what PySpark does not show, and what for."""


@dataclass(frozen=True)
class Rules:
    """What is checked; tests have smaller ones."""

    may_import: Mapping[str, str] = field(default_factory=lambda: MAY_IMPORT)
    pure: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: PURE)
    below_spark: Mapping[str, str] = field(default_factory=lambda: BELOW_SPARK)


RULES = Rules()


@dataclass(frozen=True, order=True)
class Import:
    """That a module imports another, and where it says so."""

    importer: str
    target: str
    place: str
    implied: bool = False
    """A package around the module that is named, whose `__init__` runs first."""

    def __str__(self) -> str:
        return f"{self.place}: {self.importer} imports {self.target}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks which package imports which.")
    parser.add_argument("--graph", action="store_true", help="print the edges between packages")
    parser.add_argument("--mermaid", action="store_true", help="print the rule as a picture")
    arguments = parser.parse_args(words)
    source = Path(__file__).resolve().parent.parent / "src"
    if arguments.mermaid:
        print(mermaid())
        return 0
    if arguments.graph:
        for package, imported in edges(source).items():
            counted = ", ".join(f"{name} ({count})" for name, count in imported.items())
            print(f"{package} -> {counted or 'nothing'}")
        return 0
    problems = list(violations(source))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def violations(source: Path, rules: Rules = RULES) -> Iterator[str]:
    """Every break of a rule, as a line that says which import, where and which rule."""
    files = modules(source)
    graph = {name: _imports(name, path, files) for name, path in files.items()}
    yield from _out_of_order(graph, rules)
    yield from _cycles(graph)
    yield from _ways_to_spark(graph, rules)
    yield from _reaches_below(files, graph, rules)


def edges(source: Path) -> dict[str, dict[str, int]]:
    """Which package imports which, low to high, and in how many places."""
    files = modules(source)
    counts: dict[str, dict[str, int]] = {name: defaultdict(int) for name in MAY_IMPORT}
    for name, path in files.items():
        for each in _imports(name, path, files):
            importer, target = _package(each.importer), _package(each.target)
            if each.target in files and not each.implied and importer != target:
                counts.setdefault(importer, defaultdict(int))[target] += 1
    low_to_high = {name: number for number, name in enumerate(MAY_IMPORT)}
    return {
        importer: dict(sorted(found.items(), key=lambda item: low_to_high.get(item[0], 99)))
        for importer, found in counts.items()
    }


def mermaid() -> str:
    """The rule as a Mermaid chart: an arrow for each permission that does not follow from others.

    Round are the packages without Spark; the modules below all packages are left out.
    """
    allowed = {name: set(_allowed(row)) for name, row in MAY_IMPORT.items()}
    everywhere = {"errors", "failpoints", "release"}
    reach: dict[str, set[str]] = {}
    for name, direct in allowed.items():  # low to high, so what it imports is there
        reach[name] = direct.union(*(reach[target] for target in direct))
    lines = ["flowchart TB"]
    for name, direct in reversed(allowed.items()):
        below = everywhere.union(*(reach[target] for target in direct))
        if name == FACE:
            lines.append(f'  {PACKAGE}["{PACKAGE}/__init__.py"]')
        elif name not in everywhere:
            lines.append(f"  {name}([{name}])" if name in PURE else f"  {name}[{name}]")
        for target in reversed(allowed):
            if target in direct - below:
                lines.append(f"  {name} --> {target}".replace(FACE, PACKAGE))
    return "\n".join(lines)


def modules(source: Path) -> dict[str, Path]:
    """Every module of the package, by name."""
    files = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


# -- the rules ---------------------------------------------------------------------------------


def _out_of_order(graph: Mapping[str, list[Import]], rules: Rules) -> Iterator[str]:
    seen: set[str] = set()
    for name, row in rules.may_import.items():
        for above in [target for target in _allowed(row) if target not in seen]:
            yield f"order: the row of {name} names {above}, which does not stand below it"
        seen.add(name)
    for name in sorted({_package(module) for module in graph} - seen):
        yield f"order: {name} has no row in MAY_IMPORT: say what it may import"
    for each in _explicit(graph):
        importer, target = _package(each.importer), _package(each.target)
        if importer == target or importer not in seen:
            continue
        if target not in _allowed(rules.may_import[importer]):
            yield f"order: {each}, but {importer} may not import {target}"


def _cycles(graph: Mapping[str, list[Import]]) -> Iterator[str]:
    """One line for each group of siblings that import each other, with a shortest way round."""
    levels: dict[str, dict[str, dict[str, Import]]] = defaultdict(lambda: defaultdict(dict))
    packages = {outer for module in graph for outer in _around(module)}
    for each in _explicit(graph):
        folder, sibling, other = _siblings(each, packages)
        if sibling != other:
            levels[folder][sibling].setdefault(other, each)
    for folder, siblings in sorted(levels.items()):
        told: set[str] = set()
        for start in sorted(siblings):
            way = _way_round(start, siblings)
            if way and told.isdisjoint(way):
                told.update(way)
                steps = [siblings[a][b] for a, b in zip(way, [*way[1:], start], strict=True)]
                yield f"cycle: in {folder}: " + "; ".join(map(str, steps))


def _ways_to_spark(graph: Mapping[str, list[Import]], rules: Rules) -> Iterator[str]:
    """For each module that is to be free of Spark the shortest way to it."""
    for start in sorted(graph):
        if _package(start) not in rules.pure:
            continue
        waiting, seen = deque([[each] for each in graph[start]]), {start}
        while waiting:
            way = waiting.popleft()
            target = way[-1].target
            if target in seen:
                continue
            seen.add(target)
            if _is_within(target, SPARK):
                if _is_within(target, rules.pure[_package(start)]):
                    continue
                chain = " -> ".join([start, *(each.target for each in way)])
                yield f"no Spark: {way[0].place}: {chain}, but {_package(start)} stays free of it"
                break
            waiting.extend([*way, each] for each in graph.get(target, []))


def _reaches_below(
    files: Mapping[str, Path], graph: Mapping[str, list[Import]], rules: Rules
) -> Iterator[str]:
    reaching = set()
    for name, path in files.items():
        module = name.partition(".")[2]
        if _package(name) == HOME_BELOW_SPARK:
            continue
        uses = [
            f"{each.place}: {name} imports {each.target}"
            for each in graph[name]
            if _is_within(each.target, BELOW_MODULES)
        ]
        for node in _nodes(path):
            if isinstance(node, ast.Attribute) and node.attr in BELOW_NAMES:
                uses.append(f"{_shown(path)}:{node.lineno}: {name} uses {node.attr}")
        if uses:
            reaching.add(module)
        if module not in rules.below_spark:
            for use in uses:
                yield f"below: {use}, but what is below PySpark stays in {HOME_BELOW_SPARK}/"
    for module in sorted(set(rules.below_spark) - reaching):
        yield f"below: {module} stands in BELOW_SPARK and needs no excuse: take it out"


# -- reading imports ---------------------------------------------------------------------------


def _imports(name: str, path: Path, files: Mapping[str, Path]) -> list[Import]:
    """What a module imports, in the order of the file."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: dict[str, Import] = {}
    for node in _nodes(path):
        for target in _targets(node, package, files):
            if target != name:
                place = f"{_shown(path)}:{getattr(node, 'lineno', 0)}"
                found.setdefault(target, Import(name, target, place))
    # Importing a module runs the packages around it; the outermost is exempt, see above.
    for each in list(found.values()):
        for outer in _around(each.target):
            if outer in files and outer not in (name, PACKAGE):
                found.setdefault(outer, Import(name, outer, each.place, implied=True))
    return list(found.values())


def _targets(node: ast.AST, package: str, files: Mapping[str, Path]) -> set[str]:
    if isinstance(node, ast.Import):
        return {_module(alias.name, files) for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        base = _absolute(node, package)
        # A name that is no module of ours is something inside the module it comes from.
        return {_module(f"{base}.{alias.name}", files) for alias in node.names}
    if isinstance(node, ast.Constant) and node.value in files and node.value != PACKAGE:
        return {str(node.value)}  # somebody imports it from there, as import_module(HOME[name])
    if isinstance(node, ast.Call) and _is_dynamic(node):
        named = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
        return {_module(word, files) for word in named}
    return set()


def _module(name: str, files: Mapping[str, Path]) -> str:
    """The module in which a dotted name is found: the longest beginning that is a file of ours."""
    parts = name.split(".")
    ours = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((candidate for candidate in ours if candidate in files), name)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def _is_dynamic(node: ast.Call) -> bool:
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in ("import_module", "__import__")


_READ = (ast.Attribute, ast.Call, ast.Constant, ast.Import, ast.ImportFrom)
"""What the rules look at."""


@cache
def _nodes(path: Path) -> list[ast.AST]:
    """What `ast.walk` gives of a file and is `_READ`, outer nodes first, in a fraction of its
    time.
    """
    found: list[ast.AST] = []
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"), str(path))]
    for node in nodes:  # which grows meanwhile
        if isinstance(node, _READ):
            found.append(node)
        for value in vars(node).values():
            if isinstance(value, list):
                nodes.extend(part for part in value if isinstance(part, ast.AST))
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                nodes.append(value)
    return found


def _shown(path: Path) -> str:
    return str(Path(*path.parts[path.parts.index(PACKAGE) :]))


# -- the graph ---------------------------------------------------------------------------------


def _explicit(graph: Mapping[str, list[Import]]) -> list[Import]:
    """Imports of modules of ours that are written as such."""
    every = [each for found in graph.values() for each in found]
    return sorted(each for each in every if each.target in graph and not each.implied)


def _package(module: str) -> str:
    """The row of the table that a module belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else FACE


def _around(module: str) -> list[str]:
    """The packages that a module is in, outermost first."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _allowed(row: str) -> list[str]:
    return [FACE if name == PACKAGE else name for name in row.split()]


def _siblings(each: Import, packages: Set[str]) -> tuple[str, str, str]:
    """The folder that has both ends of an import, and the two of its entries they belong to."""
    ends = []
    for module in (each.importer, each.target):
        ends.append([*module.split("."), *(["__init__"] if module in packages else [])])
    shared = 0
    while shared < min(map(len, ends)) - 1 and ends[0][shared] == ends[1][shared]:
        shared += 1
    first, second = (".".join(end[: shared + 1]) for end in ends)
    return ".".join(ends[0][:shared]), first, second


def _way_round(start: str, siblings: Mapping[str, Mapping[str, Import]]) -> list[str]:
    """The shortest way from an entry back to itself; empty if there is none."""
    waiting, seen = deque([[start]]), {start}
    while waiting:
        way = waiting.popleft()
        for other in sorted(siblings.get(way[-1], {})):
            if other == start:
                return way
            if other not in seen:
                seen.add(other)
                waiting.append([*way, other])
    return []


def _is_within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


if __name__ == "__main__":
    sys.exit(main())
