"""What holds for all tests: their cases, where they write, and in which order they run."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.kafka import Topics, kafka_broker_for_tests
from support.shares import Stopwatch, dealt, known_seconds

# Hypothesis draws the same cases in every run of `make test`, and in `make quick` the first quarter
# of them; `make fuzz` looks for new ones.
# A machine that is busy draws slowly, which says nothing of a test.
_SLOW = [HealthCheck.too_slow]
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=_SLOW)
# By so few cases nobody can tell how many a test turns down.
_FEW = [*_SLOW, HealthCheck.filter_too_much]
settings.register_profile(
    "quick", settings.get_profile("fixed"), max_examples=25, suppress_health_check=_FEW
)
settings.register_profile("fuzz", deadline=None, max_examples=1000, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

_HERE = Path(__file__).parent
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 4 << 30
_COLLECT_AFTER = 20_000


def _write_to_memory() -> None:
    """Lets temporary directories, pytest's too, be in memory where there is room.

    Nothing here cuts the power, so a sync proves nothing; on a disk it is most of what a small
    batch takes. Processes that tests start inherit this.
    """
    if "TMPDIR" in os.environ or not _MEMORY.is_dir():
        return
    if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # found anew at the next use


_write_to_memory()


def pytest_addoption(parser: pytest.Parser) -> None:
    said = "write down how long each test takes, by which later runs deal them out to processes"
    parser.addoption("--note-seconds", action="store_true", help=said)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--note-seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by their folder, and deals them out."""
    for item in items:
        for name in _markers(item.path):
            item.add_marker(name)
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = dealt(items, processes, known_seconds())


def pytest_collection_finish() -> None:
    """Keeps what all these modules and tests have made out of the garbage collector's rounds, of
    which Hypothesis' examples bring many, and has fewer of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """A Kafka broker for all tests of a process, and what they do to its topics."""
    with kafka_broker_for_tests(tmp_path_factory) as broker:
        yield Topics(broker)


def _markers(path: Path) -> Iterable[str]:
    folder = path.relative_to(_HERE).parts[0]
    return {"kill": ("kill", "spark", "slow"), "spark": ("spark",)}.get(folder, ())


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty file system on HDFS, one for all tests of a process."""
    from support.hdfs import hdfs_for_tests  # needs PySpark, and few tests need this

    with hdfs_for_tests(tmp_path_factory) as url:
        yield url
