"""Local files are created without processes, as they are otherwise, and for nobody else."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from braided.spark import local_files
from braided.spark.local_files import LocalFiles
from support import local_files_program

_TESTS = Path(__file__).parents[1]
_COMMANDS = ("chmod", "ls", "readlink", "stat")
"""What Hadoop starts for what Java can't tell or do."""


def taking_notes(directory: Path, notes: Path) -> Path:
    """Commands that note that they were called, for the PATH."""
    directory.mkdir()
    for name in _COMMANDS:
        script = directory / name
        script.write_text(f'#!/bin/sh\necho {name} >> {notes}\nexec {shutil.which(name)} "$@"\n')
        script.chmod(0o755)
    return directory


def test_no_batch_starts_processes_for_its_files_and_their_modes_are_those_of_sparks_own(
    tmp_path: Path,
) -> None:
    notes = tmp_path / "notes"
    commands = taking_notes(tmp_path / "commands", notes)
    done = subprocess.run(
        [sys.executable, local_files_program.__file__, tmp_path / "home", notes],
        env={
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": f"{_TESTS.parent / 'src'}:{_TESTS}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ours"] == 0
    assert found["setting"] is None
    assert found["native"] > 0, "Hadoop starts no processes here, so nothing was shown"
    modes = found["modes"]
    assert modes["ours"] == modes["native"]
    assert modes["ours"]["file"] == modes["ours"]["log"] == ["0o100640"]
    assert modes["ours"]["directory"] == ["0o42750"]


def settings_of(spark: SparkSession) -> Any:
    session: Any = spark._jsparkSession
    return session.sessionState().newHadoopConf()


def test_a_class_that_the_user_has_chosen_for_local_files_stays(spark: SparkSession) -> None:
    usual, own = settings_of(spark), settings_of(spark)
    own.set("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem")
    for hadoop in (usual, own):
        LocalFiles(spark).serve(hadoop)
    assert usual.get("fs.file.impl") == "braided.LocalFiles"
    assert own.get("fs.file.impl") == "org.apache.hadoop.fs.LocalFileSystem"
    assert settings_of(spark).get("fs.file.impl") is None


def test_where_the_class_cannot_be_made_files_are_created_the_usual_way(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local_files, "_NAME", "braided.NoFiles")
    monkeypatch.setattr(local_files, "_SOURCE", "package braided; public class NoFiles extends X {")
    hadoop = settings_of(spark)
    with caplog.at_level(logging.WARNING, logger="braided"):
        LocalFiles(spark).serve(hadoop)
    assert hadoop.get("fs.file.impl") is None
    assert "a process is started for each local file" in caplog.text
