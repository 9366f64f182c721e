"""The demo from the command line, and the exchange that it runs against its recomputation."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import Row

from braided.bench.s3_server import missing
from braided.cli.demo_batches import Batch, Change, summary
from braided.workloads.exchange import DEPTH, Matcher, replay
from support.bare import but_for_waiting
from support.s3 import required

SOURCE = Path(__file__).parents[2] / "src"
PATIENCE_S = 900.0
"""More than the demo has with itself."""


@contextmanager
def start(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The demo, which does not outlive its test."""
    ways = [str(SOURCE), os.environ.get("PYTHONPATH", "")]
    demo = subprocess.Popen(
        [sys.executable, "-m", "braided.cli.main", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, ways))},
    )
    try:
        yield demo
    finally:
        demo.kill()  # nothing happens to one that has ended


@pytest.fixture
def on_s3() -> list[str]:
    """With everything in objects, where there is a server; where there has to be one, it is."""
    lacking = missing()
    assert lacking is None or not required(), lacking
    return ["--s3"] if lacking is None else []


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_rescales_under_load_and_ends_identical(on_s3: list[str]) -> None:
    with start("--seconds", "8", "--rows", "500", *on_s3) as demo:
        printed, noise = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 0, printed + noise
    assert "identical to an independent recomputation" in printed
    assert "DIFFERENT" not in printed
    table = [line.split() for line in printed.splitlines() if line[:6].strip().isdigit()]
    channels = [int(line[3]) for line in table]
    assert list(dict.fromkeys(channels)) == [2, 6, 3]
    assert but_for_waiting(noise) == ""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("store", ["disk", "s3"])
def test_ctrl_c_ends_the_demo_without_a_stack_trace(store: str, on_s3: list[str]) -> None:
    if store == "s3" and not on_s3:
        pytest.skip(str(missing()))
    more = on_s3 if store == "s3" else []
    with start("--seconds", "300", "--rows", "500", *more) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line[:6].strip() == "1":
                break
        demo.send_signal(signal.SIGINT)
        printed, noise = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130, printed + noise
    assert "Stopped after" in printed
    assert but_for_waiting(noise) == ""


def test_the_summary_follows_a_change_until_it_takes_effect() -> None:
    """On a cluster that is some batches after it was asked for."""
    channels, moves = [2, 2, 2, 2, 6, 6, 6, 6], [0, 0, 0, 0, 145, 0, 0, 3]
    busy_ms = [(1.5, 0.5)] * 5 + [(1.1, 0.9)] * 3
    batches = [
        Batch(n, 10, 1000, float(n) + (n >= 4), channels[n], busy_ms[n], 9, moves[n])
        for n in range(8)
    ]
    _, rescaled, balanced = summary(batches, [Change("more", 6, 1), Change("even", 6, 5)])
    assert rescaled == "more         moved 145 slots, pause 1.00 s, imbalance 1.50 -> 1.10"
    assert balanced == "even         moved 3 slots, pause 0.00 s"


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
