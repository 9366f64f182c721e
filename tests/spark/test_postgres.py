"""The worked example of an upsert into PostgreSQL, against a real one, with deaths in between."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from braided import failpoints
from support.postgres import postgres_for_tests
from support.power_cut import cut_at
from support.stream_harness import Lab

PAGE = Path(__file__).parents[2] / "docs/postgres.md"
BATCHES = [[("a", 1.0), ("b", 2.0), ("a", 3.0)], [("b", 1.0)], [("a", 0.5), ("c", 7.0)]]


def test_the_example_applies_every_batch_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    with postgres_for_tests() as address:
        names: dict[str, Any] = {
            "__name__": "__main__",
            "spark": lab.spark,
            "payments_path": str(lab.home / "payments"),
            "checkpoint": str(lab.checkpoint),
            "address": address,
        }

        def run() -> None:
            for block in blocks:
                exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)

        def found() -> list[tuple[Any, ...]]:
            with psycopg.connect(address) as db:
                return db.execute("SELECT * FROM balances ORDER BY account").fetchall()

        def more(number: int) -> None:
            rows = [{"account": k, "amount": v} for k, v in BATCHES[number]]
            (lab.home / "payments").mkdir(exist_ok=True)
            text = "\n".join(map(json.dumps, rows))
            (lab.home / f"payments/{number}.json").write_text(text)

        more(0)
        run()
        assert found() == [("a", 2, 4.0, 1), ("b", 1, 2.0, 1)]
        more(1)
        # Applied, and the process dies before Spark has heard of it.
        with cut_at(monkeypatch, "after-publish"), pytest.raises(Exception, match="power cut"):
            run()
        assert found() == [("a", 2, 4.0, 1), ("b", 2, 3.0, 2)]
        more(2)
        # Committed, and the process dies in the middle of the transaction.
        write_row = psycopg.Copy.write_row

        def dies(copy: psycopg.Copy, row: Any) -> None:
            write_row(copy, row)
            raise failpoints.Crash("in the middle")

        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Copy, "write_row", dies)
            with pytest.raises(Exception, match="in the middle"):
                run()
        assert found() == [("a", 2, 4.0, 1), ("b", 2, 3.0, 2)]
        run()
        assert found() == [("a", 3, 4.5, 2), ("b", 2, 3.0, 2), ("c", 1, 7.0, 1)]
