"""The data source over a checkpoint, as Spark's worker processes use it: without a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext, cloudpickle
from pyspark.sql.types import StructType

import pyspark_braided
from braided.errors import BraidedError, OptionError, StateNotFoundError
from braided.flow.type_text import parse_type
from braided.inspect.source import StateSource
from braided.spark.arrow_types import to_arrow_schema
from compat.fixture import unpack

_ARCHIVES = sorted((Path(__file__).parents[1] / "compat" / "checkpoints").glob("*/*.tar.gz"))


def _sent(thing: Any) -> Any:
    """As it comes out at the other side of a pipe."""
    return cloudpickle.loads(cloudpickle.dumps(thing))


def _read(**options: str) -> tuple[str, pa.Table]:
    """All rows, and the schema that they were promised to have."""
    source = _sent(StateSource(options))
    reader = _sent(source.reader(source.schema()))
    wanted = to_arrow_schema(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(_sent(part))]
    assert all(batch.schema.equals(wanted) for batch in batches)  # Spark refuses anything else
    return source.schema().simpleString(), pa.Table.from_batches(batches, wanted)


@pytest.fixture
def processors(tmp_path: Path) -> str:
    """A checkpoint with several processors."""
    unpack(next(path for path in _ARCHIVES if path.name == "processors.tar.gz"), tmp_path)
    return str(tmp_path / "checkpoint")


@pytest.mark.parametrize("archive", _ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_state_of_every_kind_is_read_without_a_session(archive: Path, tmp_path: Path) -> None:
    unpack(archive, tmp_path)
    kept = json.loads(archive.with_name(archive.name.replace(".tar.gz", ".json")).read_text())
    with pytest.MonkeyPatch.context() as patch:
        # Other tests of this process may have left a session, which a worker has not.
        patch.setattr(SparkContext, "_active_spark_context", None)
        for operator, state in kept["state"].items():
            schema, rows = _read(path=str(tmp_path / "checkpoint"), operator=operator)
            assert schema == state["schema"]
            assert rows.num_rows == len(state["rows"]) > 0
            assert set(rows["operator"].to_pylist()) == {operator}


def test_one_variable_is_read_by_its_name(processors: str) -> None:
    _, whole = _read(path=processors, operator="Remembering")
    for variable in ("last", "seen", "by"):
        schema, rows = _read(path=processors, operatorId="0", STATEVARNAME=variable)
        assert schema.startswith("struct<operator:string,slot:int,key:struct<")
        expected = [each[variable] for each in whole["state"].to_pylist()]
        assert rows["state"].to_pylist() == [each for each in expected if each]


def test_a_version_is_read_by_its_batch(processors: str) -> None:
    newest = set(_read(path=processors, operatorId="0")[1]["batch"].to_pylist())
    assert len(newest) == 1
    before = newest.pop() - 1
    _, rows = _read(path=processors, operatorId="0", batchId=str(before))
    assert set(rows["batch"].to_pylist()) == {before}


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"version": "1"}, OptionError, "no option 'version'; it takes path, operator, operat"),
        ({"operator": "x", "operatorid": "0"}, OptionError, "operator, a name, or operatorId"),
        ({"batchId": "new"}, OptionError, "batchId is a number, not 'new'"),
        ({}, OptionError, r"several operators: say which .*'Remembering' \(0\)"),
        ({"operator": "x"}, StateNotFoundError, r"no operator 'x'; it has .*'Remembering' \(0\)"),
        ({"operatorId": "9"}, StateNotFoundError, "no operator with operatorId 9; it has "),
        ({"batchId": "999", "operatorId": "0"}, StateNotFoundError, "batch 999 is not retained"),
        (
            {"operatorId": "0", "stateVarName": "x"},
            StateNotFoundError,
            "'Remembering' has no 'x'; it has last, long, ",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    processors: str, options: dict[str, str], error: type[BraidedError], said: str
) -> None:
    with pytest.raises(error, match=said):
        StateSource({"path": processors, **options})


def test_a_path_that_holds_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateNotFoundError, match="holds no committed batch of Braided's"):
        StateSource({"path": str(tmp_path)})
    with pytest.raises(OptionError, match="needs the checkpointLocation of a query"):
        StateSource({})


def test_a_schema_of_ones_own_is_refused(processors: str) -> None:
    with pytest.raises(OptionError, match="takes no schema"):
        StateSource({"path": processors, "operatorId": "0"}).reader(StructType())


def test_spark_finds_the_source_by_itself() -> None:
    assert pyspark_braided.DefaultSource is StateSource
    assert StateSource.name() == "braided"


@pytest.mark.parametrize(
    "text",
    [
        "struct<a b:string,odd:name:array<map<string,struct<x:decimal(10,2),y:void>>>>",
        "struct<c:char(3),v:varchar(4),t:timestamp_ntz,i:interval day to second,m:interval year>",
        "decimal(38,18)",
    ],
)
def test_types_are_read_from_their_short_text(text: str) -> None:
    assert parse_type(text).simpleString() == text
