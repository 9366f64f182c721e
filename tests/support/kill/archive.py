"""The classes of Spark, loaded once and kept for all JVMs that are started to be killed.

Most of what a driver does in its short life is to load and verify classes. A JVM can write those
it has loaded to a file when it ends, and others map that file (class data sharing).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pyspark

from support.kill.crashes import Scene
from support.kill.oracle import random_batches

__all__ = ["class_archive"]


def class_archive(directory: Path, workplace: Path) -> Path:
    """The archive for the Java and the Spark of here; one process makes it, at the first need."""
    archive = directory / f"spark-{pyspark.__version__}-{_java()}.jsa"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _write(archive, workplace)
    return archive


def _java() -> str:
    """Stands for the Java that Spark takes and the jars that it reads."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java") or "java"
    version = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    jars = Path(pyspark.__file__).with_name("jars")
    read = f"{jars} {jars.stat().st_mtime_ns}"
    return hashlib.sha256(version + read.encode()).hexdigest()[:12]


def _write(archive: Path, workplace: Path) -> None:
    half = archive.with_suffix(".half")
    java = f"-XX:ArchiveClassesAtExit={half} -Xlog:disable"
    scene = Scene(workplace, random_batches(2), "totals", java=java)
    scene.finishes(leave_rest=True)
    scene.wait_for_rest()  # the JVM, which writes when it ends
    os.replace(half, archive)
