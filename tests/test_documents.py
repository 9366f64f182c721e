"""The pages of this repository name files that exist, link to what is there, and are wrapped."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/braided"
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]
WITH_CODE = {"", "bench", "sim", "testing"}
"""Packages whose `__init__` has more than a docstring: what users import, and small tables."""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    text = re.sub(r"^```mermaid\n.*?^```", "", (ROOT / page).read_text(), flags=re.M | re.S)
    named = re.findall(r"(?<![\w./*<-])((?:[\w-]+/)*[\w-]+\.(?:py|sh))\b", text)
    roots = (PACKAGE, ROOT)
    assert [n for n in named if not any((root / n).exists() for root in roots)] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    here = ROOT / page
    for target, anchor in re.findall(r"(?a)\]\(([\w./-]*)(?:#([\w-]+))?\)", here.read_text()):
        linked = here.parent / target if target else here
        assert linked.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_wrapped(page: str) -> None:
    assert list(script("markdown").long_lines((ROOT / page).read_text())) == []


def test_wrapping_changes_no_word_and_leaves_code_tables_and_lists_alone() -> None:
    markdown = script("markdown")
    long = "word " * 30
    page = "\n".join(
        [
            f"# A heading that is as long as it likes: {long}",
            "",
            f"A paragraph `with some code in it` and - a dash {long}`and code at the end`.",
            "",
            f"- an item {long}",
            "  that goes on",
            f"- another {long}",
            f"  1. one inside it {long}",
            "",
            f"| a | table {long} |",
            "",
            "```python",
            f"code = {long!r}",
            "```",
            "",
        ]
    )
    wrapped = markdown.wrapped(page)
    assert wrapped.split() == page.split()
    assert markdown.wrapped(wrapped) == wrapped
    assert list(markdown.long_lines(page)) == [3, 5, 7, 8]
    assert list(markdown.long_lines(wrapped)) == []
    assert f"code = {long!r}" in wrapped and "`with some code in it`" in wrapped
    starts = [line.split()[0] for line in wrapped.split("\n") if line.strip()]
    assert starts.count("-") == 2 and starts.count("1.") == 1


def test_the_picture_of_the_architecture_is_the_rule() -> None:
    (shown,) = re.findall(
        r"^```mermaid\n(.*?)^```", (ROOT / "docs/architecture.md").read_text(), re.M | re.S
    )
    assert shown.strip() == script("layers").mermaid()


def test_every_package_of_the_rule_is_on_the_map() -> None:
    layers = script("layers")
    text = (ROOT / "docs/architecture.md").read_text()
    for name in layers.MAY_IMPORT:
        if name != layers.FACE:
            assert f"| `{name}/`" in text or f"`{name}.py`" in text or f", `{name}/`" in text, name


def test_the_map_stands_from_high_to_low() -> None:
    layers = script("layers")
    text = (ROOT / "docs/architecture.md").read_text()
    shown = text.partition("## The map")[2].partition("\n`scripts/layers.py`")[0]
    row_of = {
        name: number
        for number, row in enumerate(re.findall(r"^\| (`.*?) \|", shown, re.M))
        for name in re.findall(r"`(\w+)(?:/|\.py)`", row)
    }
    assert row_of.keys() == layers.MAY_IMPORT.keys() - {layers.FACE}
    for name, number in row_of.items():
        lower = set(layers.MAY_IMPORT[name].split()) & row_of.keys()
        assert {other for other in lower if row_of[other] < number} == set(), name


def test_every_package_says_what_lives_in_it_and_what_it_may_touch() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        tree = ast.parse(path.read_text())
        name = str(path.parent.relative_to(PACKAGE)).replace(".", "")
        said = ast.get_docstring(tree) or ""
        assert name == "" or len(re.findall(r"[.:](\s|$)", said)) >= 2, f"{path}: {said!r}"
        assert len(tree.body) == 1 or name in WITH_CODE, f"{path} has code"


WORDS_FOR_ALL = ("what is below", "as a user")


def test_a_package_names_the_packages_that_it_may_use() -> None:
    """Those to which the picture has an arrow, unless it may use all that is below it, or all that
    users may. Packages that import none say so, too.
    """
    arrows: dict[str, set[str]] = {}
    layers = script("layers")
    for name, used in re.findall(r"^  (\w+) --> (\w+)$", layers.mermaid(), re.M):
        arrows.setdefault(name, set()).add(used)
    for name in layers.MAY_IMPORT:
        path = PACKAGE / name / "__init__.py"
        if not path.exists():
            continue
        said = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
        assert re.search(r"\bmay use\b|\bimports\b|\bas a user\b", said), name
        if not any(words in said for words in WORDS_FOR_ALL):
            assert {used for used in arrows.get(name, ()) if f"`{used}`" not in said} == set(), name


def test_kinds_says_who_names_a_kind() -> None:
    said = (PACKAGE / "kinds/__init__.py").read_text()
    rows = script("layers").MAY_IMPORT.items()
    assert {name for name, row in rows if "kinds" in row.split()} == {
        name for name, _ in rows if f"`{name}`" in said.partition("names a kind")[2]
    }


def test_files_that_the_code_names_exist() -> None:
    """In docstrings and comments: beside the file, or from the package or the repository on."""
    missing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in re.findall(r"`((?:\w+/)*\w+\.py)`", path.read_text()):
            if not any((root / name).exists() for root in (path.parent, PACKAGE, ROOT)):
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []
