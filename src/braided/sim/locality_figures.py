"""The figures of Caneill et al. by simulation, with what the paper says of them beside ours.

    figure 7    throughput by the number of hosts, with 60 % of rows that could stay
    figure 8    throughput by the share of rows that could stay, with 12 kB a row
    figure 11   locality and imbalance from period to period, on 6 hosts
    figure 12   locality by the number of pairs that statistics have room for

The last two are simulated, row by row. The first two are a model of throughput, not a measurement:
a host processes rows, and sends those that leave it through a link. What a row and a link can do is
set by what the paper says: throughput is 22 % lower with empty rows that leave, and with 12 kB the
link ceases to be the limit where 90 % of rows stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from braided.sim.correlated import CorrelatedPairs
from braided.sim.locality import LocalityPeriod, Trial, count_edges, run_periods
from braided.sim.plot import Panel, Series

__all__ = ["PAPER", "figures", "panels", "remote_shares", "throughput"]

PAPER = {
    "hash_6": 0.166,
    "online_6": 0.495,
    "offline_6_at_last": 0.40,
    "fitted_6": 0.75,
    "hash_imbalance": 1.12,
    "offline_imbalance": 1.40,
    "ratio_at_a_thousandth_of_edges": 2.0,
    "loss_with_empty_rows": 0.22,
}
"""What the text of the paper says, in our words."""

HOSTS = (1, 2, 4, 6, 8, 16, 32, 64)
PERIODS = 7
ROWS = 50_000
EDGE_ROWS = 300_000
"""The more rows, the more pairs that come once: the paper had millions."""

_REMOTE = 0.22 / 0.78
"""What sending an empty row adds to the cost of one: if all leave, a host does 22 % less."""
_LINK_BYTES = 0.1 * 12_000.0
"""What a link takes in the time of a row: with 12 kB it is the limit until 90 % stay."""


def throughput(hosts: int, padding: float, remote: float) -> float:
    """Rows in the time that one host takes for one row which stays, `remote` being the share that
    does not.
    """
    row_s = 1.0 + remote * _REMOTE
    link_s = remote * padding / _LINK_BYTES
    return hosts / max(row_s, link_s)


def remote_shares(hosts: int, locality: float) -> dict[str, float]:
    """The share of rows that leave their host, of rows (i, j) that have i = j as often as locality
    says, by the three ways to route that the paper compares.
    """
    if hosts == 1:
        return {"hash": 0.0, "aware": 0.0, "worst": 0.0}
    others = (1 - locality) * (hosts - 2) / (hosts - 1)
    return {"hash": 1 - 1 / hosts, "aware": 1 - locality, "worst": locality + others}


def figures(
    seed: int = 0, hosts: Sequence[int] = HOSTS, edge_hosts: Sequence[int] = (2, 4, 6)
) -> dict[str, Any]:
    """All figures as plain values, for these numbers of hosts, of which one is 6."""
    trial = Trial(rows=ROWS, periods=PERIODS, rows_of=CorrelatedPairs(seed=seed))
    runs = {
        count: run_periods(replace(trial, hosts=count, periods=PERIODS if count == 6 else 2))
        for count in hosts
    }
    six = runs[6]
    by_edges = _figure_12(replace(trial, rows=EDGE_ROWS, periods=2), edge_hosts)
    at_least = next(row for row in by_edges if row["hosts"] == 6)
    ours = {
        "hash_6": _mean(six, "hash"),
        "online_6": _mean(six, "online"),
        "offline_6_at_last": six[-1].offline.locality,
        "fitted_6": mean(each.fitted for each in six[1:]),
        "hash_imbalance": mean(each.hash.imbalance for each in six[1:]),
        "offline_imbalance": six[-1].offline.imbalance,
        "online_imbalance": mean(each.online.imbalance for each in six[1:]),
        "ratio_at_a_thousandth_of_edges": at_least["locality"] / at_least["hash"],
        "loss_with_empty_rows": 1 - throughput(1, 0, 1.0),
        "prediction_error": max(abs(each.promised - each.online.locality) for each in six[1:]),
    }
    return {
        "paper": PAPER,
        "ours": ours,
        "figure_7": _figure_7(),
        "figure_8": _figure_8(),
        "figure_11": [_row(each) for each in six],
        "figure_12": by_edges,
        "by_hosts": [
            {
                "hosts": count,
                "expected_by_hash": 1 / count,
                "hash": _mean(run, "hash"),
                "online": _mean(run, "online"),
                "imbalance": mean(each.online.imbalance for each in run[1:]),
            }
            for count, run in runs.items()
        ],
    }


def panels(found: dict[str, Any]) -> tuple[Panel, ...]:
    """Figure 11 as a drawing."""
    rows = found["figure_11"]
    at = [float(row["period"]) for row in rows]
    return (
        Panel(
            "share of rows that stay",
            tuple(
                Series(name, at, [row[name] for row in rows])
                for name in ("hash", "offline", "online")
            ),
        ),
    )


def _mean(run: Sequence[LocalityPeriod], name: str) -> float:
    return float(mean(getattr(each, name).locality for each in run[1:]))


def _row(period: LocalityPeriod) -> dict[str, Any]:
    return {
        "period": period.number,
        "hash": period.hash.locality,
        "offline": period.offline.locality,
        "online": period.online.locality,
        "promised": period.promised,
        "fitted": period.fitted,
        "imbalance_hash": period.hash.imbalance,
        "imbalance_offline": period.offline.imbalance,
        "imbalance_online": period.online.imbalance,
        "moved_keys": period.moved_keys,
        "entries": period.entries,
    }


def _figure_7() -> list[dict[str, Any]]:
    rows = []
    for padding in (0, 4_000, 8_000, 12_000, 20_000):
        for hosts in range(1, 7):
            shares = remote_shares(hosts, 0.6)
            speeds = {name: throughput(hosts, padding, share) for name, share in shares.items()}
            rows.append({"padding": padding, "hosts": hosts, **speeds})
    return rows


def _figure_8() -> list[dict[str, Any]]:
    rows = []
    for hosts in (2, 4, 6):
        for percent in range(0, 101, 10):
            shares = remote_shares(hosts, percent / 100)
            speeds = {name: throughput(hosts, 12_000, share) for name, share in shares.items()}
            rows.append({"hosts": hosts, "locality": percent / 100, **speeds})
    return rows


def _figure_12(trial: Trial, hosts: Sequence[int]) -> list[dict[str, Any]]:
    edges = count_edges(trial)
    rows = []
    for count in hosts:
        for share in (0.001, 0.01) if count == 6 else (0.001,):
            few = replace(trial, hosts=count, edges_max=max(1, int(share * edges)))
            last = run_periods(few)[1]
            rows.append(
                {
                    "hosts": count,
                    "edges": few.edges_max,
                    "share_of_edges": share,
                    "hash": last.hash.locality,
                    "locality": last.online.locality,
                }
            )
    return rows
