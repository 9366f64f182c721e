"""Spark's own stateful operators on a grouped stream: `transformWithState` and its relatives.

A processor's `init` runs once on the driver, on a copy of the processor, to find out which state
variables it declares: what is wrong with them is said before anything is started.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, Generic, TypeVar

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from braided.api.grouping import Grouping
from braided.api.schemas import empty_frame
from braided.errors import DefinitionError, OperatorDefinitionError, UnsupportedError
from braided.kinds.processor.first_state import InitialRows
from braided.kinds.processor.group_state import GroupStateProcessor
from braided.kinds.processor.handle import DriverHandle
from braided.kinds.processor.output import PandasSettings
from braided.kinds.processor.step import ProcessorStep
from braided.spark.jvm import Jvm
from braided.tasks.packing import pickled

__all__ = ["ProcessorMethods", "pandas_settings"]

_Result = TypeVar("_Result")

_ARROW = "spark.sql.execution.arrow"
_TIME_MODES = {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}
_TIMEOUTS = {
    GroupStateTimeout.NoTimeout: "None",
    GroupStateTimeout.ProcessingTimeTimeout: "ProcessingTime",
    GroupStateTimeout.EventTimeTimeout: "EventTime",
}


class ProcessorMethods(Generic[_Result]):
    """Spark's own stateful operators on grouped rows. Their state moves like any other."""

    _grouping: Grouping

    def _then(self, step: ProcessorStep) -> _Result:
        """What a processor makes of the rows."""
        raise NotImplementedError

    def _has_watermark(self) -> bool:
        """Whether the rows come from an input that has a watermark."""
        raise NotImplementedError

    def _taken_names(self) -> set[str]:
        """The names of the steps before."""
        raise NotImplementedError

    def transformWithState(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
    ) -> _Result:
        """Runs a StatefulProcessor on Rows, as `GroupedData.transformWithState`."""
        return self._process(
            "transformWithState",
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            initialState,
            eventTimeColumnName,
        )

    def transformWithStateInPandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
    ) -> _Result:
        """Runs a StatefulProcessor on data frames, as `GroupedData.transformWithStateInPandas`."""
        return self._process(
            "transformWithStateInPandas",
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            initialState,
            eventTimeColumnName,
        )

    def applyInPandasWithState(
        self,
        func: Callable[..., Any],
        outputStructType: StructType | str,
        stateStructType: StructType | str,
        outputMode: str,
        timeoutConf: str,
    ) -> _Result:
        """Runs a function with a GroupState, as `GroupedData.applyInPandasWithState`."""
        method = "applyInPandasWithState"
        if not callable(func):
            raise DefinitionError(f"{method} takes a function, not {func!r}")
        mode = _TIMEOUTS.get(timeoutConf)
        if mode is None:
            raise DefinitionError(
                f"{method}: timeoutConf is {timeoutConf!r}; it takes one of GroupStateTimeout's: "
                f"{', '.join(_TIMEOUTS)}"
            )
        check_output_mode(method, outputMode)
        grouping, has_watermark = self._grouping, self._has_watermark()
        session = grouping.shape.sparkSession
        if mode == "EventTime" and not has_watermark:
            raise DefinitionError(
                f"{method}: timeoutConf EventTimeTimeout needs withWatermark(...) on the "
                "DataFrame before braided.stream"
            )
        output = empty_frame(session, outputStructType, "outputStructType").schema
        processor = GroupStateProcessor(
            func,
            empty_frame(session, stateStructType, "stateStructType").schema,
            timeoutConf,
            grouping.shape.columns,
            len(output.fields),
            has_watermark,
        )
        step = processor_step(
            processor,
            getattr(func, "__name__", "applyInPandasWithState").strip("<>"),
            mode,
            True,
            session,
            keys=grouping.keys,
            key_schema=grouping.key_schema,
            input=grouping.schema,
            output=output,
            exact_frames=True,
        )
        return self._then(replace(step, name=self._free_name(step.name)))

    def _process(
        self,
        method: str,
        processor: StatefulProcessor,
        output: StructType | str,
        output_mode: str,
        time_mode: str,
        initial: GroupedData | None,
        event_time: str,
    ) -> _Result:
        if not isinstance(processor, StatefulProcessor):
            raise DefinitionError(
                f"{method} takes an instance of a class derived from StatefulProcessor, not "
                f"{processor!r}"
            )
        mode = _TIME_MODES.get(str(time_mode).lower())
        if mode is None:
            raise DefinitionError(
                f"{method}: timeMode is {time_mode!r}; it takes 'None', 'ProcessingTime' or "
                "'EventTime'"
            )
        check_output_mode(method, output_mode)
        grouping = self._grouping
        session = grouping.shape.sparkSession
        schema = empty_frame(session, output, "outputStructType").schema
        step = processor_step(
            processor,
            type(processor).__name__,
            mode,
            method == "transformWithStateInPandas",
            session,
            keys=grouping.keys,
            key_schema=grouping.key_schema,
            input=grouping.schema,
            output=schema,
            time_column=_event_time(method, schema, event_time, mode),
            initial=_initial_rows(method, initial, grouping.key_schema),
        )
        return self._then(replace(step, name=self._free_name(step.name)))

    def _free_name(self, name: str) -> str:
        """The name, with a number if a step before has it: Spark asks for no names."""
        taken = self._taken_names()
        others = (f"{name}-{number}" for number in count(2))
        return name if name not in taken else next(o for o in others if o not in taken)


def processor_step(
    processor: StatefulProcessor,
    label: str,
    time_mode: str,
    pandas: bool,
    session: SparkSession,
    **fields: Any,
) -> ProcessorStep:
    """The step that runs a processor, with these fields; refuses one that can't run."""
    try:
        data, broadcasts = pickled(processor)
    except Exception as error:
        raise OperatorDefinitionError(
            f"processor {label!r} can't be sent to the workers: {error}. It refers to something "
            "that belongs to this process alone; open such things in init"
        ) from error
    handle = DriverHandle(time_mode)
    copy: StatefulProcessor = cloudpickle.loads(data)
    try:
        copy.init(handle)
        copy.close()
    except PySparkException as error:
        raise OperatorDefinitionError(f"processor {label!r}: {error}") from error
    _check_nullable(session, label, handle)
    return ProcessorStep(
        name=label,
        label=label,
        processor=data,
        broadcasts=broadcasts,
        declared=handle.declared,
        schemas=handle.schemas,
        time_mode=time_mode,
        pandas=pandas,
        settings=pandas_settings(session),
        **fields,
    )


def _check_nullable(session: SparkSession, label: str, handle: DriverHandle) -> None:
    """Spark's rule for state that is to be kept in Avro."""
    encoding = session.conf.get("spark.sql.streaming.stateStore.encodingFormat", "unsaferow")
    if str(encoding).lower() != "avro":
        return
    for variable in handle.declared.variables:
        for field in variable.schema["fields"]:
            if not field["nullable"]:
                raise OperatorDefinitionError(
                    f"processor {label!r}: [TRANSFORM_WITH_STATE_SCHEMA_MUST_BE_NULLABLE] If "
                    "schema evolution is enabled, all the fields in the schema for column family "
                    f"{variable.name} must be nullable; {field['name']!r} is not. Make it "
                    "nullable, or set spark.sql.streaming.stateStore.encodingFormat to unsaferow"
                )


def pandas_settings(session: SparkSession) -> PandasSettings:
    def flag(name: str, default: str) -> bool:
        return str(session.conf.get(f"spark.sql.{name}", default)).lower() == "true"

    most = int(str(session.conf.get(f"{_ARROW}.maxRecordsPerBatch")))
    return PandasSettings(
        timezone=str(session.conf.get("spark.sql.session.timeZone")),
        safely=flag("execution.pandas.convertToArrowArraySafely", "false"),
        by_name=flag("legacy.execution.pandas.groupedMap.assignColumnsByName", "true"),
        int_to_decimal=flag("execution.pythonUDF.pandas.intToDecimalCoercionEnabled", "false"),
        int_ext_dtype=flag("execution.pythonUDF.pandas.preferIntExtensionDtype", "false"),
        rows_max=most if most > 0 else 2**31 - 1,
        bytes_max=Jvm(session).bytes_of(session.conf.get(f"{_ARROW}.maxBytesPerBatch")),
    )


def check_output_mode(method: str, mode: str) -> None:
    if str(mode).lower() not in ("append", "update", "complete"):
        raise DefinitionError(f"{method}: outputMode is {mode!r}; it takes 'Append' or 'Update'")
    if str(mode).lower() == "complete":
        raise UnsupportedError(
            f"{method}: outputMode 'Complete' would give out all state in every batch; a "
            "processor gives out rows as it chooses: use 'Append' or 'Update'"
        )


def _event_time(method: str, schema: StructType, name: str, mode: str) -> str:
    if not name:
        return ""
    if mode != "EventTime":
        raise DefinitionError(
            f"{method}: eventTimeColumnName goes with timeMode='EventTime', not {mode!r}"
        )
    if name not in schema.names:
        raise DefinitionError(
            f"{method}: eventTimeColumnName {name!r} is no column of outputStructType, which has "
            f"{', '.join(schema.names)}"
        )
    if not isinstance(schema[name].dataType, TimestampType | TimestampNTZType):
        raise DefinitionError(
            f"{method}: eventTimeColumnName {name!r} is {schema[name].dataType.simpleString()} and "
            "must be timestamp"
        )
    return name


def _initial_rows(method: str, initial: GroupedData | None, key: StructType) -> InitialRows | None:
    if initial is None:
        return None
    if not isinstance(initial, GroupedData):
        raise DefinitionError(
            f"{method}: initialState is a grouped DataFrame, df.groupBy(...), not "
            f"{type(initial).__name__}"
        )
    df: DataFrame = initial._df
    if df.isStreaming:
        raise DefinitionError(f"{method}: initialState is a DataFrame that is not streaming")
    fields = initial.count().schema.fields[:-1]  # the grouping columns, and then the count
    names = [field.name for field in fields]
    types = [field.dataType.simpleString() for field in fields]
    wanted = [field.dataType.simpleString() for field in key.fields]
    if types != wanted:
        raise DefinitionError(
            f"{method}: initialState is grouped by {', '.join(names)} of type "
            f"{', '.join(types)}, the stream by {', '.join(key.names)} of type "
            f"{', '.join(wanted)}: they must be of the same types"
        )
    return InitialRows(df, tuple(_column_named(method, df, name) for name in names))


def _column_named(method: str, df: DataFrame, name: str) -> str:
    """The column that a name means, as Spark understands it."""
    exact = str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
    for column in df.columns:
        if column == name or (not exact and column.lower() == name.lower()):
            return column
    raise UnsupportedError(
        f"{method}: initialState is grouped by {name!r}, which is an expression; make it "
        "a column of the DataFrame first, with withColumn"
    )
