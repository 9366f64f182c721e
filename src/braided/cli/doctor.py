"""`braided doctor`: what is installed, what is missing for what, and the command that brings it."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

__all__ = ["Part", "main", "parts"]

_JAVA = 17
_SPARK = ((4, 1), (4, 4))
"""From the first of these on; from the second on nobody has tried it."""

_KAFKA_CONNECTORS: dict[tuple[int, ...], str] = {(4, 1): "4.1.3", (4, 2): "4.2.0", (4, 3): "4.2.0"}
"""By Spark's version, since not each of its releases has a connector; 4.3 has none yet. They are
those of `scripts/kafka.sh`, with which tests run.
"""

_EXTRAS = {
    "delta": ("deltalake", "Delta tables"),
    "iceberg": ("pyiceberg", "Iceberg tables"),
    "kafka": ("confluent-kafka", "the sink that writes to Kafka exactly once"),
    "hdfs": ("hdfs-native", "checkpoints on HDFS"),
    "bench": ("grpcio", "the native side of benchmarks"),
}
"""By their names: the package that an extra brings, and what it is for."""


@dataclass(frozen=True)
class Part:
    """Something that may be there or not."""

    name: str
    purpose: str
    found: str | None
    """What there is; None if it is missing."""
    remedy: str
    """What to do if it is."""
    needed: bool = False
    """Whether nothing works without it."""


def main(argv: Sequence[str]) -> int:
    """Says what there is; 1 if something is missing that is needed, or that was asked for."""
    every = parts()
    names = [part.name for part in every if not part.needed]
    parser = argparse.ArgumentParser(
        prog="braided doctor",
        description="Says what is installed, what is missing for what, and the command that "
        "installs it. Ends with 1 if Braided can't run, or lacks a PART that was asked for.",
    )
    parser.add_argument(
        "asked", nargs="*", metavar="PART", choices=[[], *names], help=", ".join(names)
    )
    asked = parser.parse_args(argv).asked
    print("\n".join(_lines(every)))
    lacking = [p for p in every if p.found is None and (p.needed or p.name in asked)]
    if lacking:
        print(f"\nMissing: {', '.join(part.name for part in lacking)}.")
    elif asked:
        print(f"\nReady, with {', '.join(asked)}.")
    else:
        print("\nReady. What is marked with a dash is for those who need it.")
    return 1 if lacking else 0


def parts() -> list[Part]:
    """What Braided needs, and what some of it needs."""
    return [_python(), _java(), _pyspark(), *_extras(), _jars("s3"), _jars("kafka-connector")]


def _lines(every: Sequence[Part]) -> list[str]:
    width = max(len(part.name) for part in every)
    lines = []
    for part in every:
        sign = "+" if part.found is not None else "!" if part.needed else "-"
        lines.append(f"{sign} {part.name:<{width}}  {part.found or 'missing'}: {part.purpose}")
        if part.found is None:
            lines.append(f"  {'':<{width}}  {part.remedy}")
    return lines


def _python() -> Part:
    version = ".".join(map(str, sys.version_info[:3]))
    return Part("python", "runs Braided", version, "install Python 3.11 or newer", needed=True)


def _java() -> Part:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    remedy = (
        f"point JAVA_HOME at Java {_JAVA} or newer, or unset it to use the java on the PATH"
        if home
        else "apt-get install default-jre-headless  (or set JAVA_HOME to a JDK)"
    )
    purpose = f"runs Spark, which needs Java {_JAVA} or newer"
    return Part("java", purpose, _java_version(java), remedy, needed=True)


def _java_version(java: str) -> str | None:
    """The version of a Java that is new enough; None if it is not, or does not run."""
    if shutil.which(java) is None:
        return None
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', said.stderr + said.stdout)
    return match[1] if match is not None and int(match[2]) >= _JAVA else None


def _pyspark() -> Part:
    least, below = (".".join(map(str, version)) for version in _SPARK)
    wanted = f"pyspark>={least},<{below}"
    found = _version("pyspark")
    # One that is too new is tried all the same, with a warning: so does a query that starts.
    too_old = found is not None and _numbers(found) < _SPARK[0]
    purpose = f"Spark; {wanted}"
    if too_old:
        purpose += f", and {found} is installed"
    elif found is not None and _numbers(found) >= _SPARK[1]:
        purpose += " is tested, and this is newer than tested"
    return Part(
        "pyspark", purpose, None if too_old else found, f"pip install '{wanted}'", needed=True
    )


def _extras() -> list[Part]:
    return [
        Part(extra, purpose, _named(package), f"pip install 'braided[{extra}]'")
        for extra, (package, purpose) in _EXTRAS.items()
    ]


def _jars(name: str) -> Part:
    """Jars that Spark needs beside its own: looked for among those, and in Spark's settings."""
    spark = _version("pyspark") or "4.3"
    hadoop = _version_of_jar("hadoop-client-api") or ""
    artifact, version, purpose, by_hand = {
        "s3": (
            "org.apache.hadoop:hadoop-aws",
            hadoop,
            "checkpoints and output at s3a://, for Spark's own part",
            "",
        ),
        "kafka-connector": (
            "org.apache.spark:spark-sql-kafka-0-10_2.13",
            _KAFKA_CONNECTORS.get(_numbers(spark), spark),
            "Spark's source and sink for Kafka",
            "; docs/kafka.md has the jars one by one, for where this can't be resolved",
        ),
    }[name]
    jar = artifact.partition(":")[2]
    return Part(
        name,
        purpose,
        _version_of_jar(jar) or _in_settings(jar),
        f".config('spark.jars.packages', '{artifact}:{version}') for the session, or in "
        "spark-defaults.conf (this looks at files, not at what a program sets)" + by_hand,
    )


def _named(package: str) -> str | None:
    found = _version(package)
    return None if found is None else f"{package} {found}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _version_of_jar(name: str) -> str | None:
    found = [path.stem.removeprefix(f"{name}-") for path in _spark_home().glob(f"jars/{name}-*")]
    return next(iter(found), None)


def _in_settings(jar: str) -> str | None:
    folder = os.environ.get("SPARK_CONF_DIR")
    path = (Path(folder) if folder else _spark_home() / "conf") / "spark-defaults.conf"
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    told = [line for line in lines if line.startswith("spark.jars") and jar in line]
    return f"in {path}" if told else None


def _spark_home() -> Path:
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home)
    spec = find_spec("pyspark")
    return Path("/nonexistent") if spec is None or spec.origin is None else Path(spec.origin).parent
