"""Markdown wrapped at 100 columns: checks the pages of this repository, or wraps them anew.

`markdown.py` names every line that is too long; `markdown.py --write` fills paragraphs and items of
lists up to 100 columns. Tables, code, headings and what has no space to break at stay as they are;
`code in a line` is not broken.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["WIDTH", "long_lines", "main", "pages", "wrapped"]

WIDTH = 100
_FENCE = re.compile(r"^\s*(```|~~~)")
_FIXED = re.compile(r"^\s*(\||#|<|\[[^\]]+\]:|---+$|$)|^ {4}(?!\s*([-*+]|\d+\.) )|.*  $")
_ITEM = re.compile(r"^(\s*)((?:[-*+]|\d+\.) +|> )")
_WORD = re.compile(r"(?:`[^`]*`|[^\s`]|`)+")
_MARKER = re.compile(r"^(?:[-*+]|#+|\d+[.)])$|^[>|]|^(?:braided|make|pip|python3?|pytest)$")
"""Words that begin no line: there they would make an item, a heading, or look like a command."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks that Markdown is wrapped.")
    parser.add_argument("--write", action="store_true", help="wrap what is not")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    failed = False
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        if arguments.write:
            page.write_text(wrapped(text), encoding="utf-8")
            continue
        for number in long_lines(text):
            failed = True
            where = f"{page.relative_to(root)}:{number}"
            print(f"{where}: longer than {WIDTH}; scripts/markdown.py --write", file=sys.stderr)
    return 1 if failed else 0


def pages(root: Path) -> list[Path]:
    """The pages that people read, README first."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]


def long_lines(text: str) -> Iterator[int]:
    """The numbers of lines that are too long and could be shorter."""
    for number, (line, is_text) in enumerate(_lines(text), 1):
        if is_text and len(line) > WIDTH and len(_WORD.findall(line)) > 1:
            yield number


def wrapped(text: str) -> str:
    """The page with its paragraphs and items filled."""
    done: list[str] = []
    block: list[str] = []
    for line, is_text in _lines(text):
        if block and (not is_text or _ITEM.match(line)):
            done += _filled(block)
            block = []
        if is_text:
            block.append(line)
        else:
            done.append(line)
    return "\n".join([*done, *_filled(block)])


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is text that may be wrapped."""
    in_code = False
    after_text = False
    for line in text.split("\n"):
        is_fence = bool(_FENCE.match(line))
        # Four spaces make code, but not where they go on with an item of a list.
        deep = line.startswith("    ") and after_text
        is_text = not (in_code or is_fence or (_FIXED.match(line) and not deep) or not line.strip())
        in_code ^= is_fence
        after_text = is_text
        yield line, is_text


def _filled(block: list[str]) -> list[str]:
    if not block:
        return []
    item = _ITEM.match(block[0])
    first = item.group(0) if item else re.match(r"\s*", block[0]).group(0)  # type: ignore[union-attr]
    rest = first if first.endswith("> ") else " " * len(first)
    words = _WORD.findall(" ".join([block[0][len(first) :], *block[1:]]))
    lines = [words[:1]]
    for word in words[1:]:
        if len(first) + sum(map(len, lines[-1])) + len(lines[-1]) + len(word) <= WIDTH:
            lines[-1].append(word)
            continue
        begun = [word]
        while _MARKER.match(begun[0]) and len(lines[-1]) > 1:
            begun.insert(0, lines[-1].pop())
        lines.append(begun)
    return [(rest if number else first) + " ".join(line) for number, line in enumerate(lines)]


if __name__ == "__main__":
    sys.exit(main())
