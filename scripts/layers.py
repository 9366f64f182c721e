"""The layer rule: control/, state/ and sim/ never import Spark, nor the layers that do.

Imports are read, not run, wherever they stand in a file, and followed through the modules of this
package: state/ may not import something that imports pyspark either. The package's own
`__init__`, the face that users see, is a way only for who names something in it.
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

__all__ = ["imports", "main", "modules", "violations"]

PACKAGE = "braided"
PURE = ("control", "sim", "state")
FORBIDDEN = ("pyspark", "py4j", f"{PACKAGE}.api", f"{PACKAGE}.engine")


def main() -> int:
    found = list(violations(Path(__file__).resolve().parent.parent / "src"))
    for chain in found:
        print(f"layer rule: {' -> '.join(chain)}", file=sys.stderr)
    if found:
        print(f"{', '.join(PURE)} stay free of {', '.join(FORBIDDEN)}.", file=sys.stderr)
    return 1 if found else 0


def violations(source: Path) -> Iterator[list[str]]:
    """For each module of a pure layer the shortest way to each forbidden one."""
    files = modules(source)
    graph = {name: imports(name, path, files) for name, path in files.items()}
    for start in sorted(graph):
        if start.split(".")[1:2] and start.split(".")[1] in PURE:
            yield from _ways(start, graph)


def modules(source: Path) -> dict[str, Path]:
    """Every module of the package, by name."""
    found = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, files: dict[str, Path]) -> set[str]:
    """What a module imports, as module names."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found |= {_module(alias.name, files) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            # A name that is no module of ours is something inside the module it comes from.
            found |= {_module(f"{base}.{alias.name}", files) for alias in node.names}
        elif isinstance(node, ast.Call) and _is_dynamic(node):
            named = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
            found |= {_module(word, files) for word in named}
    # Importing a module runs the packages around it; the outermost is exempt, see above.
    around = {".".join(n.split(".")[:i]) for n in found for i in range(2, n.count(".") + 1)}
    return (found | {outer for outer in around if outer in files}) - {name}


def _ways(start: str, graph: dict[str, set[str]]) -> Iterator[list[str]]:
    waiting, seen = deque([[start]]), {start}
    while waiting:
        chain = waiting.popleft()
        for target in sorted(graph.get(chain[-1], set()) - seen):
            seen.add(target)
            if any(target == bad or target.startswith(bad + ".") for bad in FORBIDDEN):
                yield [*chain, target]
            else:
                waiting.append([*chain, target])


def _module(name: str, files: dict[str, Path]) -> str:
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


if __name__ == "__main__":
    sys.exit(main())
