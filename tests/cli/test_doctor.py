"""`braided doctor`: what is there, what is not, and what it ends with."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from braided.cli import doctor
from braided.cli.main import main

ROOT = Path(__file__).parents[2]


def test_all_that_this_environment_has_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "delta", "iceberg", "kafka"]) == 0
    said = capsys.readouterr().out
    for line in ("+ java", "+ pyspark", "+ delta", "+ iceberg", "+ kafka "):
        assert line in said
    assert "Ready, with delta, iceberg, kafka." in said


def test_what_is_missing_is_said_with_the_command_that_brings_it(tmp_path: Path) -> None:
    """In an environment that has PySpark's files and nothing else: no package, no Java."""
    spark = tmp_path / "spark"
    (spark / "jars").mkdir(parents=True)
    (spark / "jars/hadoop-client-api-3.9.9.jar").touch()
    bare = {"PYTHONPATH": str(ROOT / "src"), "PATH": str(tmp_path), "SPARK_HOME": str(spark)}

    def run(*asked: str, **more: str) -> tuple[int, str]:
        code = f"import sys; from braided.cli.doctor import main; sys.exit(main({list(asked)}))"
        # Without this environment's packages: -S leaves them out.
        made = subprocess.run(
            [sys.executable, "-S", "-c", code],
            env={**bare, **more},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not made.stderr
        return made.returncode, made.stdout

    code, said = run()
    assert code == 1 and "Missing: java, pyspark." in said
    assert "! java" in said and "apt-get install default-jre-headless" in said
    assert "pip install 'pyspark>=" in said
    for extra in ("delta", "iceberg", "kafka", "hdfs"):
        assert f"pip install 'braided[{extra}]'" in said
    assert "org.apache.hadoop:hadoop-aws:3.9.9" in said
    # An old Java is none, a new one is; what is asked for is then needed.
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin/java"
    for version, known in (("11.0.2", False), ("1.8.0_402", False), ("21.0.1", True)):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        _, said = run(JAVA_HOME=str(tmp_path))
        assert (f"+ java             {version}" in said) == known
    package = tmp_path / "more/pyspark-4.3.9.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: pyspark\nVersion: 4.3.9\n")
    (spark / "jars/hadoop-aws-3.9.9.jar").touch()
    (tmp_path / "spark-defaults.conf").write_text("spark.jars.packages x:spark-sql-kafka-0-10_2.13")
    settings = {
        "JAVA_HOME": str(tmp_path),
        "PYTHONPATH": f"{ROOT / 'src'}:{tmp_path / 'more'}",
        "SPARK_CONF_DIR": str(tmp_path),
    }
    assert run(**settings)[0] == 0
    code, said = run("s3", "kafka-connector", **settings)
    assert code == 0 and "Ready, with s3, kafka-connector." in said
    code, said = run("delta", "s3", **settings)
    assert code == 1 and "Missing: delta." in said
    # What is newer than all that was tested is tried, and what is too old is not.
    (package / "METADATA").write_text("Name: pyspark\nVersion: 4.4.0\n")
    code, said = run(**settings)
    assert code == 0 and "+ pyspark          4.4.0: " in said and "newer than tested" in said
    (package / "METADATA").write_text("Name: pyspark\nVersion: 3.5.1\n")
    code, said = run(**settings)
    assert code == 1 and "3.5.1 is installed" in said and "pip install 'pyspark>=4.1,<4.4'" in said


def test_it_names_the_connector_for_kafka_that_there_is_for_each_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That with which tests run: `scripts/kafka.sh` gets one for 4.1 and one for what is newer."""
    script = (ROOT / "scripts/kafka.sh").read_text()
    connector = "org.apache.spark:spark-sql-kafka-0-10_2.13"
    [newer] = re.findall(rf"^ +spark:({connector}:\S+)", script, re.M)
    [old] = re.findall(rf"^ +spark-4.1:({connector}:\S+)", script, re.M)
    for spark, named in (
        ("4.1.4", old),
        ("4.2.1", newer),
        ("4.3.0", newer),
        ("4.4.0", f"{connector}:4.4.0"),  # which may have one of its own
    ):
        monkeypatch.setattr(doctor, "_version", {"pyspark": spark}.get)
        [part] = [part for part in doctor.parts() if part.name == "kafka-connector"]
        assert f"'{named}'" in part.remedy
    # And the page that it refers to has all of them.
    page = (ROOT / "docs/kafka.md").read_text()
    assert all(jar in page for jar in re.findall(r"org\.[\w.]+:[\w.-]+:[\w.-]+", script))


def test_it_knows_the_versions_and_extras_of_the_package(
    capsys: pytest.CaptureFixture[str],
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [spark] = [d for d in project["dependencies"] if d.startswith("pyspark")]
    [part] = [part for part in doctor.parts() if part.name == "pyspark"]
    assert part.remedy == f"pip install '{spark}'"
    assert {part.name for part in doctor.parts()} >= {*project["optional-dependencies"]} - {"dev"}
    for extra, (package, _) in doctor._EXTRAS.items():
        brought = project["optional-dependencies"][extra]
        assert any(each.startswith(package) for each in brought)
    with pytest.raises(SystemExit):
        main(["doctor", "nonsense"])
    assert "kafka-connector" in capsys.readouterr().err
