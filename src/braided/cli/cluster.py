"""`braided cluster`: a standalone cluster on this machine in the foreground, to try programs on.

Master and workers are processes with addresses of their own on loopback, so a program meets what it
meets on real hosts: executors, remote shuffles, caches per host, hosts that are lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from braided.bench.standalone_cluster import ClusterError, StandaloneCluster, standalone_cluster
from braided.cli.asked_to_end import asked_to_end

__all__ = ["explain", "main"]

_WORKERS_MAX, _CORES_MAX, _MEMORY_MB_MAX = 64, 256, 1 << 20
_MEMORY_MB_MIN = 512
"""Spark refuses an executor with less than 450 MB."""


def main(argv: Sequence[str]) -> int:
    """Runs a cluster until it is asked to end, by Ctrl-C or by SIGTERM."""
    arguments = _parser().parse_args(argv)
    print(f"Starting a master and {arguments.workers} workers on loopback ...", flush=True)
    try:
        with (
            asked_to_end() as asked,
            tempfile.TemporaryDirectory(prefix="braided-cluster-", ignore_cleanup_errors=True) as d,
            standalone_cluster(
                Path(d), arguments.workers, arguments.cores, arguments.memory
            ) as cluster,
        ):
            if not asked.is_set():
                print(explain(cluster), flush=True)
            asked.wait()
            print("\nStopping ...", flush=True)
    except ClusterError as error:
        print(f"braided: {error}", file=sys.stderr)
        return 1
    print("Stopped.", flush=True)
    return 0


def explain(cluster: StandaloneCluster) -> str:
    """What a person needs to know of a cluster that runs."""
    hosts = [f"  {w.host:<12} pid {w.pid:<8} {w.local_dir}" for w in cluster.workers]
    settings = [f'    "{name}": "{value}",' for name, value in cluster.spark_settings.items()]
    return "\n".join(
        [
            f"\nA Spark cluster runs at {cluster.url}; workers, and where they keep their files:",
            *hosts,
            "\nA program connects with these settings:\n",
            "  settings = {",
            *settings,
            "  }",
            "  spark = SparkSession.builder.config(map=settings).getOrCreate()",
            "\nCheckpoint and output can be on a local path here: all hosts are this machine.",
            "To lose a host, kill -9 its pid. Ctrl-C stops the cluster.",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="braided cluster",
        description="Runs a Spark standalone cluster until Ctrl-C: a master on 127.0.0.1, workers "
        "on 127.0.0.2 and following. Nothing listens but on loopback.",
    )
    parser.add_argument("--workers", type=_count(1, _WORKERS_MAX), default=4, help="hosts (4)")
    parser.add_argument("--cores", type=_count(1, _CORES_MAX), default=1, help="of each worker (1)")
    parser.add_argument(
        "--memory",
        type=_count(_MEMORY_MB_MIN, _MEMORY_MB_MAX),
        default=768,
        metavar="MB",
        help="of each worker's executor, in megabytes (768)",
    )
    return parser


def _count(least: int, most: int) -> Callable[[str], int]:
    """Reads a whole number of a range."""

    def whole_number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"takes a whole number from {least} to {most}, not {text!r}"
            )
        return int(text)

    return whole_number
