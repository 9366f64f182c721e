"""The rule of the house holds here, and its check finds what breaks it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def layers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("layers", ROOT / "scripts" / "layers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def package(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "braided" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def broken(layers: ModuleType, source: Path, rule: str) -> list[str]:
    """What breaks one of the rules, with this repository's table and no excuses."""
    found = layers.violations(source, layers.Rules(below_spark={}))
    return [line for line in found if line.startswith(f"{rule}: ")]


def test_the_rule_holds_in_this_repository(layers: ModuleType) -> None:
    assert list(layers.violations(ROOT / "src")) == []


# -- order -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "import braided.api",
        "import braided.query.plan",
        "from braided.query import plan",
        "from braided import query",
        "from ..query import plan",
        "from .. import api",
        "def later():\n    from braided.api import stream",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from braided.query import plan",
        "import importlib\nimportlib.import_module('braided.query.plan')",
        "HOME = {'plan': 'braided.query.plan'}",
        "from braided import stream",
    ],
)
@pytest.mark.parametrize("layer", ["control", "flow", "store", "tasks"])
def test_an_import_of_a_layer_above_is_found(
    layers: ModuleType, tmp_path: Path, layer: str, line: str
) -> None:
    files = {"__init__.py": "", "api/__init__.py": "", "query/__init__.py": "", "query/plan.py": ""}
    source = package(tmp_path, {**files, f"{layer}/thing.py": line})
    (told,) = broken(layers, source, "order")
    lines = line.count("\n") + 1
    assert told.startswith(
        f"order: braided/{layer}/thing.py:{lines}: braided.{layer}.thing imports"
    )
    assert f"but {layer} may not import " in told


def test_imports_of_layers_below_and_within_a_package_are_free(
    layers: ModuleType, tmp_path: Path
) -> None:
    source = package(
        tmp_path,
        {
            "errors.py": "",
            "store/files.py": "from braided.errors import A",
            "store/deep/runs.py": "from braided.store import files\nfrom braided import errors",
            "tasks/rows.py": "from braided.store.deep import runs",
        },
    )
    assert list(layers.violations(source, layers.Rules(below_spark={}))) == []


def test_a_package_that_the_table_does_not_have_is_found(
    layers: ModuleType, tmp_path: Path
) -> None:
    source = package(tmp_path, {"helpers/text.py": "import braided.api", "api/__init__.py": ""})
    (told,) = broken(layers, source, "order")
    assert "helpers has no row" in told


def test_a_row_of_the_table_that_names_one_above_it_is_found(
    layers: ModuleType, tmp_path: Path
) -> None:
    rules = layers.Rules(may_import={"store": "query", "query": "store"}, below_spark={})
    source = package(tmp_path, {"store/a.py": "", "query/a.py": ""})
    (told,) = layers.violations(source, rules)
    assert "the row of store names query" in told


# -- cycles ------------------------------------------------------------------------------------


def test_modules_of_a_folder_that_import_each_other_are_found(
    layers: ModuleType, tmp_path: Path
) -> None:
    source = package(
        tmp_path,
        {
            "store/records/a.py": "from braided.store.records.b import B",
            "store/records/b.py": "def later():\n    from braided.store.records import c",
            "store/records/c.py": "from . import a",
            "store/records/d.py": "from . import a",
        },
    )
    assert broken(layers, source, "cycle") == [
        "cycle: in braided.store.records: "
        "braided/store/records/a.py:1: braided.store.records.a imports braided.store.records.b; "
        "braided/store/records/b.py:2: braided.store.records.b imports braided.store.records.c; "
        "braided/store/records/c.py:1: braided.store.records.c imports braided.store.records.a"
    ]


def test_packages_of_a_folder_that_import_each_other_are_found(
    layers: ModuleType, tmp_path: Path
) -> None:
    source = package(
        tmp_path,
        {
            "store/slots/cache.py": "from braided.store.history import runs",
            "store/slots/keys.py": "",
            "store/history/runs.py": "",
            "store/history/garbage.py": "from braided.store.slots import keys",
        },
    )
    (told,) = broken(layers, source, "cycle")
    assert told.startswith("cycle: in braided.store: ")
    assert "slots.cache imports" in told and "history.garbage imports" in told


def test_a_folders_init_is_one_of_its_modules(layers: ModuleType, tmp_path: Path) -> None:
    files = {
        "testing/__init__.py": "from braided.testing.stream import StreamTest",
        "testing/stream.py": "from braided.testing import rows",
        "testing/rows.py": "",
    }
    assert broken(layers, package(tmp_path / "good", files), "cycle") == []
    files["testing/rows.py"] = "from braided.testing import StreamTest"
    (told,) = broken(layers, package(tmp_path / "bad", files), "cycle")
    assert told.startswith("cycle: in braided.testing: braided/testing/__init__.py:1: ")


# -- no Spark ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "import pyspark",
        "import pyspark.sql.functions as F",
        "from pyspark.sql import DataFrame",
        "import py4j",
        "def later():\n    from pyspark.sql import SparkSession",
        "import importlib\nimportlib.import_module('pyspark.sql')",
    ],
)
@pytest.mark.parametrize("layer", ["control", "dict_functions", "operator", "sim", "store"])
def test_an_import_of_spark_is_found(
    layers: ModuleType, tmp_path: Path, layer: str, line: str
) -> None:
    source = package(tmp_path, {f"{layer}/thing.py": line})
    (told,) = broken(layers, source, "no Spark")
    assert f"braided.{layer}.thing -> py" in told and f"{layer} stays free of it" in told


def test_rows_and_types_of_spark_are_values_that_operators_may_name(
    layers: ModuleType, tmp_path: Path
) -> None:
    line = "from pyspark.sql import Row\nfrom pyspark.sql.types import StructType"
    source = package(tmp_path, {"operator/a.py": line, "dict_functions/a.py": line})
    assert broken(layers, source, "no Spark") == []
    source = package(tmp_path, {"store/a.py": line})
    assert len(broken(layers, source, "no Spark")) == 1


def test_a_way_through_other_modules_is_found_and_shown(layers: ModuleType, tmp_path: Path) -> None:
    source = package(
        tmp_path,
        {
            "store/deep/files.py": "from ...shared import paths",
            "shared/__init__.py": "",
            "shared/paths.py": "from braided.shared.session import current",
            "shared/session.py": "from pyspark.sql import SparkSession",
        },
    )
    assert broken(layers, source, "no Spark") == [
        "no Spark: braided/store/deep/files.py:1: braided.store.deep.files -> braided.shared.paths "
        "-> braided.shared.session -> pyspark.sql.SparkSession, but store stays free of it"
    ]


def test_a_package_around_an_imported_module_counts(layers: ModuleType, tmp_path: Path) -> None:
    source = package(
        tmp_path,
        {
            "store/durable/files.py": "import braided.shared.paths",
            "shared/__init__.py": "import pyspark",
            "shared/paths.py": "",
        },
    )
    (told,) = broken(layers, source, "no Spark")
    assert "braided.store.durable.files -> braided.shared -> pyspark" in told


def test_the_face_of_the_package_counts_for_who_names_something_in_it(
    layers: ModuleType, tmp_path: Path
) -> None:
    files = {
        "__init__.py": "from braided.api import stream",
        "api/__init__.py": "import pyspark",
        "errors.py": "",
        "store/good.py": "from braided import errors\nimport braided.errors",
    }
    assert broken(layers, package(tmp_path / "good", files), "no Spark") == []
    files["store/bad.py"] = "from braided import stream"
    (told,) = broken(layers, package(tmp_path / "bad", files), "no Spark")
    assert "braided.store.bad -> braided -> " in told


def test_layers_above_and_names_that_only_look_alike_are_free(
    layers: ModuleType, tmp_path: Path
) -> None:
    source = package(
        tmp_path,
        {
            "api/query.py": "import pyspark",
            "statements.py": "import pyspark",
            "store/a.py": "import pysparkling\nimport os",
        },
    )
    assert broken(layers, source, "no Spark") == []


# -- below PySpark -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("from py4j.protocol import Py4JError", "imports py4j.protocol.Py4JError"),
        ("from pyspark.sql.classic.column import _to_seq", "imports pyspark.sql.classic.column."),
        ("def f(df):\n    return df._jdf.collect()", "uses _jdf"),
        ("def f(spark):\n    return spark.sparkContext._jvm", "uses _jvm"),
    ],
)
def test_what_is_below_pyspark_is_found_outside_of_its_package(
    layers: ModuleType, tmp_path: Path, line: str, use: str
) -> None:
    source = package(tmp_path, {"query/plan.py": line, "spark/jvm.py": line})
    (told,) = broken(layers, source, "below")
    lines = line.count("\n") + 1
    assert told.startswith(f"below: braided/query/plan.py:{lines}: braided.query.plan {use}")


def test_an_excuse_counts_while_it_is_needed(layers: ModuleType, tmp_path: Path) -> None:
    rules = layers.Rules(below_spark={"query.plan": "a reason"})
    source = package(tmp_path / "needed", {"query/plan.py": "def f(df):\n    return df._jdf"})
    assert list(layers.violations(source, rules)) == []
    (told,) = layers.violations(package(tmp_path / "stale", {"query/plan.py": ""}), rules)
    assert "query.plan stands in BELOW_SPARK and needs no excuse" in told


# -- what it prints ----------------------------------------------------------------------------


def test_the_edges_between_packages_are_counted(layers: ModuleType, tmp_path: Path) -> None:
    source = package(
        tmp_path,
        {
            "errors.py": "",
            "store/a.py": "import braided.errors",
            "store/b.py": "from braided import errors\nfrom braided.store import a",
            "query/c.py": "from braided.store import a\nfrom braided.errors import E",
        },
    )
    found = {name: row for name, row in layers.edges(source).items() if row}
    assert found == {"store": {"errors": 2}, "query": {"errors": 1, "store": 1}}


def test_the_graph_of_this_repository_is_printed(
    layers: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str) -> list[str]:
        assert layers.main(arguments) == 0
        return capsys.readouterr().out.splitlines()

    assert "control -> nothing" in printed("--graph")
    picture = printed("--mermaid")
    assert "  api --> query" in picture
    assert "  api --> store" not in picture  # it follows from the others


def test_no_two_classes_share_a_name() -> None:
    """A name leads to one class, in a traceback and in a search. There are no exceptions: what is
    private to a module is called by what it is there, and an underscore does not tell two apart.
    """
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                places.setdefault(node.name.lstrip("_"), []).append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
