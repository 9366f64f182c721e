"""Versions of Spark: the one that is there is known, an older refused, a newer warned about."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from braided.errors import UnsupportedError
from braided.spark.version import NEWEST, OLDEST, SPARK, supported_version, warn_if_untested

_ROOT = Path(__file__).parents[2]


def test_the_version_that_is_here_is_supported() -> None:
    assert OLDEST <= SPARK <= NEWEST
    assert pyspark.__version__.startswith(f"{SPARK[0]}.{SPARK[1]}.")


def test_what_is_installed_is_what_is_supported() -> None:
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    [(least, below)] = re.findall(
        r"pyspark>=([\d.]+),<([\d.]+)", (_ROOT / "pyproject.toml").read_text()
    )
    assert least == oldest
    assert below == f"{NEWEST[0]}.{NEWEST[1] + 1}"
    assert f"\npyspark=={newest}." in (_ROOT / "constraints.txt").read_text()


def test_an_older_version_is_refused_in_a_sentence() -> None:
    with pytest.raises(UnsupportedError, match=r"PySpark 4\.0\.5 is too old: .* 4\.1 to 4\.3"):
        supported_version("4.0.5")
    with pytest.raises(UnsupportedError, match="too old"):
        supported_version("3.5.9")


def test_a_stream_of_an_older_version_is_refused_as_soon_as_it_is_asked_for() -> None:
    program = "import pyspark; pyspark.__version__ = '4.0.5'; import braided; braided.stream"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    said = ended.stderr.splitlines()[-1]
    assert said.startswith("braided.errors.UnsupportedError: PySpark 4.0.5 is too old"), said


def test_a_newer_version_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    newer = supported_version("5.0.0.dev1")
    with caplog.at_level(logging.WARNING, "braided"):
        warn_if_untested(NEWEST)
        warn_if_untested(newer)
        warn_if_untested(newer)
    [said] = [record.getMessage() for record in caplog.records]
    assert "tested with PySpark 4.1 to 4.3, and this is 5.0" in said
