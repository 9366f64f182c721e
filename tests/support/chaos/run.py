"""The chaos run: rounds of faults, and after each the proof that nothing is lost and nothing twice.

`make chaos` runs it at length; `tests/cluster/test_chaos.py` runs a short one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from braided.bench.s3_server import S3Server, missing, serve
from braided.bench.standalone_cluster import StandaloneCluster, standalone_cluster
from support.chaos.disks import can_mount, mounted
from support.chaos.driver import Job
from support.chaos.driver_process import Drivers
from support.chaos.faults import Saboteur
from support.chaos.oracle import Oracle, rows_of_file
from support.chaos.plan import SLOTS, Command, Fault, Kind, Round, deal
from support.chaos.store_proxy import proxied
from support.chaos.verdict import Judge, WrongRows

__all__ = ["ChaosError", "Report", "chaos"]

HOSTS = 4
TOGETHER = 3
RECOVERY_S_MAX = 600.0
"""How long a query may take to be where it should be; a busy machine must not fail a run."""
FILE_EVERY_S = 0.3
FILES_PER_ROUND = (4, 14)
FILES_PER_BATCH = 4
_LOOK_S = 0.2
_ROOT = Path(__file__).resolve().parents[3]
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 4 << 30
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_UNEXPECTED = (
    *["CheckpointCorruptError", "CheckpointMismatchError", "CheckpointVersionError"],
    *["NondeterministicBatchError", "OperatorError", "StateValueError", "OutputSchemaError"],
)
"""Errors that no fault of these excuses: a query may fail, and go on when it is started again, but
not because of what it finds in its checkpoint.
"""
# Everything that happens now and then happens often.
_OPTIONS = {
    "braided.slots": str(SLOTS),
    "braided.channels": "3",
    "braided.orderBy": "id",
    "braided.snapshot.minBytes": "1k",
    "braided.snapshot.factor": "1",
    "braided.retainedManifests": "10",
    "braided.fullManifestEvery": "4",
    "braided.windowBatches": "3",
}


class ChaosError(AssertionError):
    """The query did not do what it should, by so and so; the seed that repeats it is named."""


@dataclass
class Report:
    """What came of a run."""

    seed: int
    faults: int
    """As planned; `by_kind` has those that were done."""
    together: int = TOGETHER
    """How many are in flight at a time, at most. Another number is another plan."""
    left_out: list[str] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)
    longest_by_kind_s: dict[str, float] = field(default_factory=dict)
    recoveries: int = 0
    longest_recovery_s: float = 0.0
    rows_written: int = 0
    rows_checked: int = 0
    rows_wrong: int = 0
    batches: int = 0
    drivers: int = 0
    commands: int = 0
    epochs: int = 0
    """How often a routing table was another than before, of all operators."""
    rounds_with_pins: int = 0
    rounds_with_assigned: int = 0
    """In which keys of several operators were assigned to slots at the end."""
    query_errors: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    failed: bool = False

    def note(self, fault: Fault, took_s: float) -> None:
        kind = fault.kind.value
        self.by_kind[kind] += 1
        self.longest_by_kind_s[kind] = max(self.longest_by_kind_s.get(kind, 0.0), round(took_s, 1))
        self.longest_recovery_s = max(self.longest_recovery_s, round(took_s, 1))

    @property
    def repeat(self) -> str:
        plan = f"CHAOS_SEED={self.seed} CHAOS_FAULTS={self.faults} CHAOS_TOGETHER={self.together}"
        return f"make chaos {plan}"

    def to_json(self) -> str:
        said = {**self.__dict__, "by_kind": dict(sorted(self.by_kind.items()))}
        return json.dumps({**said, "repeat": self.repeat}, indent=1)


class _Source:
    """A directory of files with rows that are known beforehand."""

    def __init__(self, directory: Path, seed: int, oracle: Oracle) -> None:
        self.directory = directory
        self.files = 0
        self._seed = seed
        self._oracle = oracle
        directory.mkdir()

    def add(self) -> None:
        rows = rows_of_file(self._seed, self.files)
        self._oracle.feed(rows)
        hidden = self.directory.with_name(f".{self.files:06d}.json")
        hidden.write_text(
            "".join(
                json.dumps({"id": row.id, "k": row.k, "v": row.v, "at": _time_text(row.at_ms)})
                + "\n"
                for row in rows
            )
        )
        # Spark takes the oldest files first.
        os.utime(hidden, (1_700_000_000 + self.files,) * 2)
        os.replace(hidden, self.directory / f"{self.files:06d}.json")
        self.files += 1


def _time_text(ms: int) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms // 1000))
    return f"{seconds}.{ms % 1000:03d}Z"


@dataclass
class _Stage:
    """Everything that a run is about."""

    report: Report
    home: Path
    cluster: StandaloneCluster
    drivers: Drivers
    saboteur: Saboteur
    source: _Source
    oracle: Oracle
    judge: Judge
    say: Callable[[str], None]

    def play(self, each: Round) -> None:
        """One round: faults and commands while rows come in, then the proof."""
        begun = {fault.number: 0.0 for fault in each.faults}

        def do(fault: Fault) -> str:
            time.sleep(fault.after_s)
            begun[fault.number] = time.monotonic()
            return self.saboteur.do(fault)

        def ask(command: Command) -> None:
            time.sleep(command.after_s)
            self.drivers.current.command(command.method, *command.arguments)

        with ThreadPoolExecutor(len(each.faults) + len(each.commands)) as pool:
            pending: list[tuple[Fault, Future[str]]] = [
                (fault, pool.submit(do, fault)) for fault in each.faults
            ]
            asked = [pool.submit(ask, command) for command in each.commands]
            self._feed_while(lambda: not all(future.done() for _, future in pending))
        hit = {fault.number: future.result() for fault, future in pending}
        for future in asked:
            future.result()
        self.report.commands += len(asked)
        self.await_exact(", ".join(f"{fault.number} ({fault.kind})" for fault in each.faults))
        self.report.recoveries += 1
        self.report.rounds_with_pins += self.judge.pinned_keys() > 0
        self.report.rounds_with_assigned += self.judge.assigned_operators() > 1
        for fault in each.faults:
            took_s = time.monotonic() - begun[fault.number]
            self.report.note(fault, took_s)
            self.say(f"{fault.number:>4} {fault.kind:<20} {took_s:>6.1f} s  {hit[fault.number]}")
        for line in self.drivers.new_errors():
            self.say(f"     a query failed, and went on: {line}")

    def _feed_while(self, faults_last: Callable[[], bool]) -> None:
        """Rows come in at a steady pace, so many at most: while faults last, and a few at least."""
        least, most = FILES_PER_ROUND
        files = 0
        while (busy := faults_last()) or files < least:
            if files < most:
                self.source.add()
                files += 1
            self.drivers.mend()
            time.sleep(FILE_EVERY_S if files < most or not busy else _LOOK_S)
        self.source.add()  # nobody has recovered who does not take in what comes afterwards

    def await_exact(self, after: str) -> None:
        """Until the query has taken everything in and all is as it should be."""
        deadline = time.monotonic() + RECOVERY_S_MAX
        while not self.judge.is_exact(self.oracle):
            self.drivers.mend()
            unexpected = [error for error in self.drivers.errors() if error in _UNEXPECTED]
            if unexpected:
                raise ChaosError(f"after faults {after} the query failed with {unexpected}")
            if time.monotonic() > deadline:
                raise ChaosError(
                    f"{RECOVERY_S_MAX:.0f} s after faults {after} the query is not where it "
                    f"should be, at batch {self.judge.newest_batch()}\n"
                    + self.judge.differences(self.oracle)
                )
            time.sleep(_LOOK_S)

    def finish(self) -> None:
        """Stops the query, then reads all of it once more."""
        driver = self.drivers.current
        driver.command("stop")
        driver.await_end(RECOVERY_S_MAX)
        self.judge.forget()
        if not self.judge.is_exact(self.oracle):
            raise ChaosError(f"at the end:\n{self.judge.differences(self.oracle)}")


def chaos(home: Path, report: Report, say: Callable[[str], None] = print) -> None:
    """A whole run, below a directory of its own; the report says which, and how far it came,
    however it ends.
    """
    disks = can_mount(home)
    without = [] if disks else [Kind.FILL_DISK]
    report.left_out = [f"{kind}: no right to mount a small disk" for kind in without]
    begun = time.monotonic()
    with _stage(home, report, disks, say) as stage:
        try:
            stage.source.add()
            stage.drivers.start()
            stage.await_exact("none")
            say(f"seed {report.seed}: the query runs after {time.monotonic() - begun:.0f} s")
            for each in deal(report.seed, report.faults, without, report.together):
                stage.play(each)
            stage.finish()
        except WrongRows as error:
            report.rows_wrong = error.count
            raise _explained(stage, error) from error
        except Exception as error:
            raise _explained(stage, error) from error
        finally:
            report.rows_written = stage.oracle.rows
            report.rows_checked = stage.judge.rows_checked
            report.epochs = stage.judge.epochs()
            report.batches = stage.judge.newest_batch() + 1
            report.drivers = stage.drivers.count
            report.query_errors = dict(stage.drivers.errors())
            report.seconds = round(time.monotonic() - begun, 1)


def _explained(stage: _Stage, error: Exception) -> ChaosError:
    stage.report.failed = True
    return ChaosError(
        f"{type(error).__name__}: {error}\n{stage.drivers.current.tail()}\n"
        f"logs are below {stage.home}; again: {stage.report.repeat}"
    )


@contextmanager
def _stage(home: Path, report: Report, disks: bool, say: Callable[[str], None]) -> Iterator[_Stage]:
    with ExitStack() as stack:
        hosts = home / "hosts"
        if disks:
            local = [hosts / f"127.0.0.{number}" / "local" for number in range(2, 2 + HOSTS)]
            stack.enter_context(mounted(local))
        server = stack.enter_context(serve(home / "s3"))
        proxy = stack.enter_context(proxied(server.endpoint))
        # Two applications fit: while one driver takes over from another, there are both.
        cluster = stack.enter_context(
            standalone_cluster(hosts, workers=HOSTS, cores=2, memory_mb=1024)
        )
        oracle = Oracle()
        source = _Source(home / "input", report.seed, oracle)
        job = _job(source, cluster, replace(server, endpoint=proxy.endpoint))
        drivers = Drivers(home, job)
        stack.callback(drivers.end)
        saboteur = Saboteur(cluster, drivers, proxy)
        judge = Judge(server.bucket, server.bucket / "output", server.bucket / "checkpoint")
        yield _Stage(report, home, cluster, drivers, saboteur, source, oracle, judge, say)


def _job(source: _Source, cluster: StandaloneCluster, server: S3Server) -> Job:
    ways = os.pathsep.join([str(_ROOT / "src"), str(_ROOT / "tests")])
    s3 = dict(server.spark_settings)
    # Hosts of one machine need no copies of their own.
    s3["spark.jars"] = ",".join(f"local:{jar}" for jar in s3["spark.jars"].split(","))
    settings = {
        **cluster.spark_settings,
        **s3,
        "spark.app.name": "braided chaos",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.cores.max": str(HOSTS),
        "spark.executorEnv.PYTHONPATH": ways,
        "spark.executorEnv.TZ": "UTC",
        "spark.driver.extraJavaOptions": _JAVA,
        "spark.local.dir": str(source.directory.with_name("driver-local")),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(source.directory.with_name("warehouse")),
        "spark.ui.showConsoleProgress": "false",
    }
    return Job(
        input=str(source.directory),
        output=f"{server.url}/output",
        checkpoint=f"{server.url}/checkpoint",
        commands="",
        said="",
        takeover=False,
        files_per_batch=FILES_PER_BATCH,
        spark=settings,
        options=_OPTIONS,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Faults by a seed, and rows that must be right.")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--together", type=int, default=TOGETHER)
    given = parser.parse_args(arguments)
    lacking = missing()
    if lacking is not None:
        print(lacking, file=sys.stderr)
        return 2
    home = Path(tempfile.mkdtemp(prefix="braided-chaos-", dir=_place()))
    report = Report(given.seed, given.faults, given.together)
    try:
        chaos(home, report, say=_print)
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    else:
        return 0
    finally:
        _print(report.to_json())
        if not report.failed:
            shutil.rmtree(home, ignore_errors=True)


def _print(line: Any) -> None:
    print(line, flush=True)


def _place() -> Path | None:
    """In memory, where there is room: nothing here cuts the power."""
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN:
        return _MEMORY
    return None


if __name__ == "__main__":
    sys.exit(main())
