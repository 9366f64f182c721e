"""What docs/control.md shows runs, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from braided.control import registry
from braided.control.registry import policy_names

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/control.md").read_text()


def test_the_examples_run_one_after_the_other(capsys: Any, monkeypatch: Any) -> None:
    # What an example registers is gone when the test is over.
    for known in ("_SCALE", "_BALANCE"):
        monkeypatch.setattr(registry, known, dict(getattr(registry, known)))
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)):
        # Not with this file's __future__ imports, which an example does not have.
        exec(compile(block, f"example {number + 1}", "exec", dont_inherit=True), names)
    ours, mine, apart = map(eval, capsys.readouterr().out.splitlines())
    assert mine["latency_p99_s"] < 6
    assert ours["latency_p99_s"] < 6
    assert apart["imbalance"] > ours["imbalance"]


def test_every_policy_is_described() -> None:
    for names in policy_names().values():
        for name in names:
            assert f"**`{name}`**" in TEXT


def test_files_that_the_page_names_exist() -> None:
    named = re.findall(r"`((?:control|sim)/[\w/]+\.py)`", TEXT)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / "src/braided" / name).exists()] == []
