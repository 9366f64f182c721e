"""The demo from the command line, and the exchange that it runs against its recomputation."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import Row

from braided.bench.s3_server import missing
from braided.workloads.exchange import DEPTH, Matcher, replay

SOURCE = Path(__file__).parents[2] / "src"


def start(*arguments: str) -> subprocess.Popen[str]:
    ways = [str(SOURCE), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", "braided.cli.main", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, ways))},
    )


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_rescales_under_load_and_ends_identical() -> None:
    demo = start("--seconds", "8", "--rows", "500")
    printed, noise = demo.communicate(timeout=400)
    assert demo.returncode == 0, printed + noise
    assert "identical to an independent recomputation" in printed
    assert "DIFFERENT" not in printed
    table = [line.split() for line in printed.splitlines() if line[:6].strip().isdigit()]
    channels = [int(line[3]) for line in table]
    assert list(dict.fromkeys(channels)) == [2, 6, 3]
    assert noise == ""


@pytest.mark.spark
@pytest.mark.slow
def test_ctrl_c_ends_the_demo_without_a_stack_trace() -> None:
    # Where there is a server, with everything on it.
    demo = start("--seconds", "300", "--rows", "500", *(["--s3"] if missing() is None else []))
    assert demo.stdout is not None
    for line in demo.stdout:
        if line[:6].strip() == "1":
            break
    demo.send_signal(signal.SIGINT)
    printed, noise = demo.communicate(timeout=200)
    assert demo.returncode == 130, printed + noise
    assert "Stopped after" in printed
    assert noise == ""


def test_the_recomputation_matches_orders_as_the_operator_does() -> None:
    source = random.Random(5)
    orders = [
        (
            number,
            f"S{source.randrange(3)}",
            f"T{source.randrange(9)}",
            source.choice(["buy", "sell"]),
            source.randrange(80, 121),
            10 * source.randrange(1, 11),
        )
        for number in range(3_000)
    ]
    expected = replay(orders)
    matchers: dict[str, Matcher] = {}
    held: dict[str, int] = {}
    for number, stock, trader, side, price, shares in orders:
        matcher = matchers.setdefault(stock, Matcher())
        row = Row(id=number, stock=stock, trader=trader, side=side, price=price, shares=shares)
        for who, _, change, _ in matcher.onRow(row):
            held[who] = held.get(who, 0) + change
    assert held == {who: shares for who, (_, shares, _) in expected.positions.items()}
    for stock, matcher in matchers.items():
        for side, book in (("buy", matcher.bids), ("sell", matcher.asks)):
            assert len(book) <= DEPTH
            waiting = [(w.id, w.trader, w.price, w.shares) for w in book]
            assert waiting == expected.books[stock, side]
