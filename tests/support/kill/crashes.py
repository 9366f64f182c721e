"""Runs of the driver, killed at a fail point or left to end, and what they leave on disk.

Everything is read without Spark: the output by following `_spark_metadata`, the state from the
checkpoint through the state layer alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from braided.bench.kafka_broker import connector_jars
from braided.bench.s3_server import S3Server
from braided.spark.offset_log import SparkLog
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest_log import ManifestLog
from braided.store.slots.cache_port import SlotCache
from braided.store.slots.channel_state import ChannelChanges, ChannelState, SnapshotLimits
from braided.store.slots.host_directory import host_directory
from braided.store.slots.key_codec import KeyCodec
from braided.store.slots.lmdb_cache import Cache
from braided.testing.kinds import tested_kind
from support.kill.driver import Job
from support.kill.operators import OPERATORS
from support.kill.oracle import InputRow

__all__ = ["Progress", "Scene", "State"]

RUN_SECONDS_MAX = 600
GONE_SECONDS_MAX = 180
NO_SETTINGS = "/nonexistent"
"""Drivers log as Spark does by itself; and JVMs share no classes if a folder has a file in it."""
_ROOT = Path(__file__).resolve().parents[3]


class Progress(NamedTuple):
    """What one batch of one run showed of itself."""

    run: int
    batch: int
    redelivered: bool
    counters: Mapping[str, int]
    is_cut: bool


class State(NamedTuple):
    records: dict[str, tuple[Any, ...]]
    """The fields of every key that has state."""
    opening: ChannelChanges
    """What it took to open the slots."""


class Scene:
    """One query's directories, and the runs of the driver on them, one after the other."""

    def __init__(
        self,
        directory: Path,
        batches: list[list[InputRow]],
        operator: str,
        sink: str = "parquet",
        restless: bool = False,
        adversary: bool = False,
        java: str = "",
        s3: S3Server | None = None,
        source: Mapping[str, str] | None = None,
        **options: str,
    ) -> None:
        """With an S3 server, output and checkpoint are in its bucket, and read as the files that
        the server keeps. With a source, options of Kafka's, input comes from there.
        """
        self.directory = directory
        self.home = directory if s3 is None else s3.bucket / directory.name
        self.output = self.home / "output"
        self.checkpoint = self.home / "checkpoint"
        self.cache = directory / "cache"
        self.runs = 0
        self.log = ""
        self._operator = operator
        self._sink = sink
        self._restless = restless
        self._adversary = adversary
        self._java = java
        self._s3 = s3
        self._source = dict(source or {})
        self._options = {"braided.slots": "16", "braided.channels": "2", **options}
        self._sessions: list[int] = []
        _write_input(directory / "input", batches)

    # -- runs ------------------------------------------------------------------------------

    def dies_at(self, point: str, leave_rest: bool = False, cuts: bool = False) -> None:
        """Runs the driver until it is killed at a fail point, given as `name:n`; its batches may be
        cut while they run.
        """
        code = self._wait(self._start(point, "driver", cuts=cuts), leave_rest)
        assert code == -signal.SIGKILL, f"run {self.runs} ({point}) ended with {code}\n{self.log}"
        self._was_reached(point)

    def loses_worker_at(self, point: str, environment: Mapping[str, str]) -> None:
        """Runs the driver to its end; the worker that comes to a fail point is killed there."""
        code = self._run(point, "worker", False, environment)
        assert code == 0, f"run {self.runs} ended with {code}\n{self.log}"
        self._was_reached(point)

    def finishes(self, leave_rest: bool = False) -> None:
        """Runs the driver to its end."""
        code = self._run("", "driver", leave_rest)
        assert code == 0, f"run {self.runs} ended with {code}\n{self.log}"

    def wait_for_rest(self) -> None:
        """Waits until nothing is left of the last run, without doing anything to it."""
        deadline = time.monotonic() + RUN_SECONDS_MAX
        while left := _alive(self._sessions[-1]):
            assert time.monotonic() < deadline, f"processes {left} do not end"
            time.sleep(0.05)

    def end_all(self) -> None:
        """Ends whatever is left of all runs."""
        for session in self._sessions:
            _end_session(session)

    def _was_reached(self, point: str) -> None:
        times = self._path("count").stat().st_size
        assert times >= int(point.partition(":")[2]), f"{point} was reached {times} times only"

    def pauses_at(self, point: str, endless: bool = False) -> Paused:
        """Runs the driver until it comes to a fail point, where it stands still."""
        stop = {"BRAIDED_FAILPOINT_SIGNAL": "SIGSTOP"}
        driver = self._start(point, "driver", stop, endless=endless)
        paused = Paused(driver, self._path("log"), self._path("count"))
        paused.is_reached()
        return paused

    def is_refused(self) -> str:
        """Runs the driver, which does not come to its first batch; what it says."""
        assert self._run("", "driver", False) not in (0, -signal.SIGKILL)
        return self.log

    def takes_over(self) -> None:
        """Runs the driver to its end, on a checkpoint that somebody seems to hold."""
        code = self._wait(self._start("", "driver", options={"braided.takeover": "true"}), False)
        assert code == 0, f"run {self.runs} ended with {code}\n{self.log}"

    def _address(self, path: Path) -> str:
        """What the driver calls a path."""
        if self._s3 is None:
            return str(path)
        return f"{self._s3.url}/{path.relative_to(self._s3.bucket)}"

    def _run(
        self, point: str, victim: str, leave_rest: bool, more: Mapping[str, str] | None = None
    ) -> int:
        return self._wait(self._start(point, victim, more), leave_rest)

    def _start(
        self,
        point: str,
        victim: str,
        more: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        endless: bool = False,
        cuts: bool = False,
    ) -> subprocess.Popen[bytes]:
        self.runs += 1
        job = Job(
            operator=self._operator,
            input=str(self.directory / "input"),
            output=self._address(self.output),
            checkpoint=self._address(self.checkpoint),
            cache=str(self.cache),
            progress=str(self._path("progress")),
            sink=self._sink,
            victim=victim,
            restless=self._restless,
            adversary=self._adversary,
            java=self._java,
            options={**self._options, **(options or {})},
            spark=self._settings(),
            source=self._source,
            endless=endless,
            cuts=cuts,
        )
        self._path("job").write_bytes(msgspec.json.encode(job))
        environment = {
            **os.environ,
            "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT / 'tests'}",
            "SPARK_CONF_DIR": NO_SETTINGS,
            "BRAIDED_FAILPOINT": point,
            "BRAIDED_FAILPOINT_COUNT": str(self._path("count")),
            **(more or {}),
        }
        environment.pop("BRAIDED_FAILPOINT_PID", None)
        with self._path("log").open("w") as log:
            driver = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("driver.py")), self._path("job")],
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # All it starts is in its session, whatever process groups Spark makes.
                start_new_session=True,
            )
        self._sessions.append(driver.pid)
        return driver

    def _settings(self) -> dict[str, str]:
        """What the session needs to reach the servers."""
        found = {} if self._s3 is None else self._s3.spark_settings
        if self._source:
            jars = [*filter(None, [found.get("spark.jars")]), *map(str, connector_jars())]
            found["spark.jars"] = ",".join(jars)
        return found

    def _wait(self, driver: subprocess.Popen[bytes], leave_rest: bool) -> int:
        try:
            code = driver.wait(RUN_SECONDS_MAX)
        finally:
            if not leave_rest or driver.returncode is None:
                _end_session(driver.pid)
                driver.wait()
            self.log = self._path("log").read_text()
        return code

    def _path(self, kind: str) -> Path:
        return self.directory / f"run-{self.runs:02d}.{kind}"

    # -- what they left --------------------------------------------------------------------

    def published(self, sink: str = ".") -> list[dict[str, Any]]:
        """The output rows that a reader sees."""
        root = Path("/") if self._s3 is None else self._s3.bucket
        files = _visible_files(self.output / sink, root)
        return [row for path in files for row in _parquet_rows(path)]

    def by_batch(self, sink: str) -> list[dict[str, Any]]:
        """The rows of a sink that writes a file for each batch."""
        lines = [
            line
            for path in (self.output / sink).glob("*.json")
            for line in path.read_text().splitlines()
        ]
        return [json.loads(line) for line in lines]

    def committed_batch(self) -> int:
        """The newest batch that has a manifest; -1 if there is none."""
        newest = ManifestLog(self._files()).newest()
        return -1 if newest is None else newest

    def spark_batch(self) -> int:
        """The newest batch that Spark has recorded as done; -1 if there is none."""
        newest = SparkLog(LocalStore(self.checkpoint)).last_commit()
        return -1 if newest is None else newest

    def state(self, cached: bool = False, name: str = "op") -> State:
        """The committed state, from the durable files or by way of the cache that the runs left."""
        files = self._files()
        batch = self.committed_batch()
        if batch < 0:
            return State({}, ChannelChanges(None, None, (), 0, 0, 0, 0, 0, 0, 0))
        view = ManifestLog(files).view_at(batch)
        cache: SlotCache | None = Cache(self.cache_of(view.flow)) if cached else None
        slots = ChannelState(files, cache, name, view.operators[name], SnapshotLimits())
        slots.open_slots(range(view.operators[name].meta.slots))
        keys = KeyCodec(pa.schema([("key", pa.string())]))
        kind, history = tested_kind(OPERATORS[self._operator][0]), view.operators[name].meta.history
        records = {}
        for number in range(view.operators[name].meta.slots):
            for suffix, raw in slots.slot(number).scan(b"k"):
                fields, _ = kind.fields(raw, history)
                [key] = keys.decode(suffix[1:])
                assert key not in records
                records[key] = tuple(fields.values())
        assert len(records) == view.operators[name].keys
        return State(records, slots.finish(f"state/{name}/read-only"))

    def cache_of(self, flow: str) -> Path:
        return host_directory(self.cache, flow)

    def keep_cache(self) -> None:
        """Takes a copy of the cache, to which `restore_cache` goes back."""
        shutil.copytree(self.cache, self.directory / "cache-copy")

    def restore_cache(self) -> None:
        shutil.rmtree(self.cache)
        (self.directory / "cache-copy").rename(self.cache)

    def progress(self) -> list[Progress]:
        """All batches of all runs, as far as they came."""
        found = []
        for path in sorted(self.directory.glob("run-*.progress")):
            run = int(path.stem.removeprefix("run-"))
            for line in path.read_text().splitlines():
                said = json.loads(line)
                counters = said["operators"].get("op", {})
                batch, redelivered, is_cut = said["batchId"], said["redelivered"], "cut" in said
                found.append(Progress(run, batch, redelivered, counters, is_cut))
        return found

    def deliveries(self) -> list[tuple[int, bool, list[dict[str, Any]]]]:
        """What the foreachBatch function got, call by call: batch, whether it returned, rows."""
        found = []
        for path in sorted(self.output.iterdir()):
            lines = path.read_text().splitlines()
            ended = lines[-1:] == ["end"]
            rows = [json.loads(line) for line in lines if line != "end"]
            found.append((int(path.name.partition("-")[2]), ended, rows))
        return found

    def _files(self) -> LocalStore:
        return LocalStore(str(self.checkpoint / "braided"))


class Paused(NamedTuple):
    """A driver that stands still."""

    driver: subprocess.Popen[bytes]
    log: Path
    count: Path

    def is_reached(self) -> None:
        """Waits until it comes to the fail point."""
        deadline = time.monotonic() + RUN_SECONDS_MAX
        while _state(self.driver.pid) != "T":
            self.has_not_ended()
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def resumes(self) -> None:
        """Lets it go on, past the fail point as often as it comes there."""
        self.driver.send_signal(signal.SIGCONT)

    def will_pause(self) -> None:
        """From now on the times that it comes to the fail point count anew."""
        os.truncate(self.count, 0)

    def has_not_ended(self) -> None:
        assert self.driver.poll() is None, self.log.read_text()

    def dies(self) -> None:
        """Kills it, with all that it has started."""
        _end_session(self.driver.pid)
        assert self.driver.wait() == -signal.SIGKILL

    def goes_on(self) -> str:
        """Lets it go on to its end, which is an error; what it says."""
        self.driver.send_signal(signal.SIGCONT)
        assert self.driver.wait(RUN_SECONDS_MAX) not in (0, -signal.SIGKILL), self.log.read_text()
        return self.log.read_text()


def _write_input(directory: Path, batches: list[list[InputRow]]) -> None:
    directory.mkdir()
    for number, batch in enumerate(batches):
        path = directory / f"{number:04d}.json"
        path.write_text("".join(json.dumps(row._asdict()) + "\n" for row in batch))
        # Spark takes the oldest files first.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _visible_files(output: Path, root: Path) -> Iterator[Path]:
    """Follows a file sink's log as Spark's readers do: the newest compacted file, then the rest.

    `root` is what the paths in it are below.
    """
    log = output / "_spark_metadata"
    if not log.is_dir():
        return
    names = [path.name for path in log.iterdir() if path.name[0].isdigit()]
    compacted = max((int(n.partition(".")[0]) for n in names if n.endswith(".compact")), default=-1)
    plain = sorted(int(name) for name in names if name.isdigit() and int(name) > compacted)
    chosen = [f"{compacted}.compact"] if compacted >= 0 else []
    for name in [*chosen, *map(str, plain)]:
        version, *entries = (log / name).read_text().splitlines()
        assert version == "v1"
        for entry in map(json.loads, entries):
            assert entry["action"] == "add"
            yield root / unquote(urlsplit(entry["path"]).path).lstrip("/")


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return rows


def _end_session(session: int) -> None:
    """Kills what is left of a driver we started (its JVM and workers) and sees it gone."""
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while left := _alive(session):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        assert time.monotonic() < deadline, f"processes {left} do not end"
        time.sleep(0.01)


def _state(pid: int) -> str:
    """A process's state as the kernel writes it; T when it was stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _alive(session: int) -> list[int]:
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        with suppress(FileNotFoundError, ProcessLookupError):
            # pid (name) state parent group session ...; the name may hold anything
            state, _, _, its_session, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            if int(its_session) == session and state not in "ZX":
                found.append(int(path.name))
    return found
