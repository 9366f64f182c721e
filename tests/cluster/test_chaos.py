"""Twenty faults against a flow of three operators on four hosts, with its checkpoint in an object
store: after every recovery, output and state are those of a plain loop. `make chaos` goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from braided.bench.s3_server import missing
from support.chaos.plan import DECK
from support.chaos.run import Report, chaos

SEED, FAULTS, TOGETHER = 9, len(DECK), 4
"""A seed that has keys assigned in rounds in which the driver that is told to stays."""


@pytest.mark.spark
def test_twenty_faults_lose_no_row_and_give_none_twice(tmp_path: Path) -> None:
    lacking = missing()
    if lacking is not None:
        assert os.environ.get("BRAIDED_TEST_S3") != "required", lacking
        pytest.skip(lacking)
    report = Report(SEED, FAULTS, TOGETHER)
    chaos(tmp_path, report)
    print(report.to_json())
    assert sum(report.by_kind.values()) == FAULTS
    assert report.rows_wrong == 0
    assert report.rows_checked > report.rows_written / 10
    assert report.rounds_with_assigned > 0
