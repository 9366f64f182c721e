"""The layer rule holds here, and its check finds what breaks it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def layers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("layers", ROOT / "scripts" / "layers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "braided" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_rule_holds_in_this_repository(layers: ModuleType) -> None:
    assert list(layers.violations(ROOT / "src")) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pyspark",
        "import pyspark.sql.functions as F",
        "from pyspark.sql import DataFrame",
        "import py4j",
        "import braided.api",
        "from braided.engine import batch",
        "from braided import engine",
        "from ..engine import batch",
        "from .. import api",
        "def later():\n    from pyspark.sql import Row",
        "import importlib\nimportlib.import_module('pyspark.sql')",
    ],
)
@pytest.mark.parametrize("layer", ["control", "sim", "state"])
def test_an_import_of_spark_or_a_layer_above_is_found(
    layers: ModuleType, tmp_path: Path, layer: str, line: str
) -> None:
    source = package(
        tmp_path,
        {f"{layer}/thing.py": line, "engine/__init__.py": "", "query/engine.py": "import pyspark"},
    )
    assert any(chain[0] == f"braided.{layer}.thing" for chain in layers.violations(source))


def test_a_way_through_other_modules_is_found_and_shown(layers: ModuleType, tmp_path: Path) -> None:
    source = package(
        tmp_path,
        {
            "state/deep/files.py": "from ...shared import paths",
            "shared/__init__.py": "",
            "shared/paths.py": "from braided.shared.session import current",
            "shared/session.py": "from pyspark.sql import SparkSession",
        },
    )
    assert list(layers.violations(source)) == [
        [
            "braided.state.deep.files",
            "braided.shared.paths",
            "braided.shared.session",
            "pyspark.sql.SparkSession",
        ]
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
    assert [chain[-2] for chain in layers.violations(source)] == ["braided.shared"]


def test_the_face_of_the_package_counts_for_who_names_something_in_it(
    layers: ModuleType, tmp_path: Path
) -> None:
    files = {
        "__init__.py": "from braided.api import stream",
        "api/__init__.py": "import pyspark",
        "errors.py": "",
        "state/good.py": "from braided import errors\nimport braided.errors",
    }
    assert list(layers.violations(package(tmp_path / "good", files))) == []
    files["state/bad.py"] = "from braided import stream"
    assert [chain[0] for chain in layers.violations(package(tmp_path / "bad", files))] == [
        "braided.state.bad"
    ]


def test_layers_above_and_names_that_only_look_alike_are_free(
    layers: ModuleType, tmp_path: Path
) -> None:
    source = package(
        tmp_path,
        {
            "api/query.py": "import pyspark",
            "statements.py": "import pyspark",
            "state/a.py": "import pysparkling\nimport os",
        },
    )
    assert list(layers.violations(source)) == []
