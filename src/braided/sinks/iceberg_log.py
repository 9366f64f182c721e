"""An Iceberg table through its catalog, by way of `pyiceberg`: no class of Iceberg's in the JVM.

A table's snapshot names its files, and the catalog says which snapshot it is. A batch is one change
in the catalog that brings a snapshot with the batch's files and notes sink and batch twice: in the
snapshot, for people and tools that look at the table's history, and in a property of the table, as
snapshots expire. The catalog takes the change only if the table is still what it was, so that of
two publishers of one batch the second looks again and finds it.

What leads to a catalog has secrets in it: they are in no message and no repr.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import StructField, StructType

from braided.errors import DefinitionError, UnsupportedError
from braided.sinks.iceberg_file import described
from braided.sinks.iceberg_rewrite import replaced_files
from braided.sinks.iceberg_types import columns_of, iceberg_schema, iceberg_type
from braided.sinks.parquet_rows import KeySet, stored_rows
from braided.sinks.table_log import BatchRows, FileEntry, SomebodyWasFirst, TableLog
from braided.store.durable.location import Location

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["INSTALL", "IcebergLog", "is_installed"]

INSTALL = "pip install 'braided[iceberg]'"

_SINK = "braided.sink"
_BATCH = "braided.batch"
_TOLD = ("type", "warehouse")
"""Properties of a catalog that are no secrets."""

_MAPPING = "schema.name-mapping.default"
_MERGES = "commit.manifest-merge.enabled"
_NO_RETRIES = {"commit.retry.num-retries": "0"}
_FORMAT_MAX = 2


def is_installed() -> bool:
    return find_spec("pyiceberg") is not None


class IcebergLog(TableLog):
    """A table of a catalog."""

    format: ClassVar[str] = "iceberg"

    def __init__(self, catalog: str | None, name: str, properties: Mapping[str, str]) -> None:
        """`properties` are those of the catalog beside what pyiceberg's own configuration has; a
        catalog without a name is the default one.
        """
        if not is_installed():
            raise UnsupportedError(f"format('iceberg') needs the package pyiceberg: {INSTALL}")
        self._secrets = [v for k, v in properties.items() if k not in _TOLD and len(v) > 2]
        self.title = f"Iceberg table {name}"
        with self._errors_as_ours():
            self._catalog = _load(catalog, properties)
        self.name = f"{self._catalog.name}.{name}"
        self.title = f"Iceberg table {self.name}"
        self._identifier = tuple(name.split("."))
        self._table: Table | None = None

    def __repr__(self) -> str:
        return f"IcebergLog({self.name!r})"

    @contextmanager
    def _errors_as_ours(self) -> Iterator[None]:
        """Errors of the catalog as ours, without what nobody is to read."""
        try:
            yield
        except (DefinitionError, SomebodyWasFirst):
            raise
        except Exception as error:  # of whatever library a catalog is reached by
            raise DefinitionError(
                f"format('iceberg'): the {self.title} can't be read: {self._without_secrets(error)}"
            ) from None

    def _without_secrets(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        for secret in self._secrets:
            text = text.replace(secret, "...")
        return text

    # -- the table as it is now --------------------------------------------------------------

    def exists(self) -> bool:
        from pyiceberg.exceptions import NoSuchTableError

        with self._errors_as_ours():
            try:
                self._table = self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                return False
        return True

    def has_namespace(self) -> bool:
        """Whether the table could be made."""
        with self._errors_as_ours():
            return self._catalog.namespace_exists(self._identifier[:-1])

    @property
    def schema(self) -> StructType:
        return columns_of(self._seen.schema())

    @property
    def partition_by(self) -> list[str]:
        return [self._seen.schema().find_field(f.source_id).name for f in self.partition_fields]

    @property
    def partition_fields(self) -> list[PartitionField]:
        """How rows are kept apart: by columns, or by something that is made of them."""
        from pyiceberg.transforms import VoidTransform

        return [f for f in self._seen.spec().fields if not isinstance(f.transform, VoidTransform)]

    @property
    def not_for_us(self) -> str | None:
        version = self._seen.format_version
        if version > _FORMAT_MAX:
            return f"format version {version}"
        for field in self.partition_fields:
            if not field.transform.preserves_order:
                return f"partition by {field.transform}({field.name})"
        mapping = self._seen.name_mapping()
        if mapping is not None:
            # By which readers find columns in files that have names alone, as ours.
            known = {f.field_id: f.names for f in mapping.root}
            for column in self._seen.schema().fields:
                if column.name not in known.get(column.field_id, ()):
                    return f"{_MAPPING} has no column {column.name!r}"
        return None

    def batch_of(self, application: str) -> int | None:
        found = [self._seen.properties.get(_property(application), "-1")]
        for snapshot in self._seen.snapshots():
            told = _told_by(snapshot)
            if told.get(_SINK) == application:
                found.append(told[_BATCH])
        newest = max(map(int, found))
        return None if newest < 0 else newest

    @property
    def remembers_s(self) -> None:
        return None

    @property
    def data_path(self) -> str:
        """Where files of the table lie, as the table spells it."""
        return self._seen.location_provider().data_path

    @property
    def _seen(self) -> Table:
        assert self._table is not None, "nobody has looked whether the table exists"
        return self._table

    # -- changes -------------------------------------------------------------------------------

    def create(self, schema: StructType, partition_by: Sequence[str]) -> None:
        from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        columns = iceberg_schema(schema)
        fields = [
            PartitionField(
                source_id=columns.find_field(name).field_id,
                field_id=PARTITION_FIELD_ID_START + number,
                transform=IdentityTransform(),
                name=name,
            )
            for number, name in enumerate(partition_by)
        ]
        with self._errors_as_ours():
            self._table = self._catalog.create_table_if_not_exists(
                self._identifier, columns, partition_spec=PartitionSpec(*fields)
            )
        self._sync()

    def add_columns(self, fields: Sequence[StructField]) -> None:
        with self._errors_as_ours(), self._seen.update_schema() as update:
            for field in fields:
                update.add_column(field.name, iceberg_type(field.dataType))
        self._sync()

    def misplaced(self, files: Sequence[FileEntry]) -> str | None:
        """Why the table can't take files; None if it can."""
        try:
            for path in self._paths(files):
                described(self._seen.io, self._seen.metadata, path)
        except ValueError as error:
            return str(error)
        return None

    def _paths(self, files: Sequence[FileEntry]) -> list[str]:
        return [f"{file['root']}/{file['path']}" for file in files]

    def _commit(self, batch: BatchRows, application: str) -> None:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        noted = {_SINK: application, _BATCH: str(batch.number)}
        written: list[str] = []
        try:
            with self._once().transaction() as change:
                if self._seen.name_mapping() is None:
                    mapping = self._seen.schema().name_mapping.model_dump_json()
                    change.set_properties({_MAPPING: mapping})
                with self._snapshot(change, batch, noted) as snapshot:
                    if batch.keys:
                        self._replace(snapshot, batch, written)
                    for path in (*self._paths(batch.files), *written):
                        file = described(self._seen.io, change.table_metadata, path)
                        snapshot.append_data_file(file)
                change.set_properties({_property(application): str(batch.number)})
        except CommitFailedException as error:
            for path in written:
                self._seen.io.delete(path)
            raise SomebodyWasFirst(self._without_secrets(error)) from None
        except CommitStateUnknownException as error:
            # Of a change that may have been made we can only see whether it was. One that is made
            # later fails: the table is not what it was any more.
            raise SomebodyWasFirst(self._without_secrets(error)) from None
        except Exception as error:  # of whatever library a catalog is reached by
            raise ValueError(self._without_secrets(error)) from None
        self._sync(written)

    def _snapshot(self, change: Transaction, batch: BatchRows, noted: dict[str, str]) -> Any:
        """The snapshot that a batch becomes."""
        update = change.update_snapshot(snapshot_properties=noted)
        if batch.keys:
            return update.overwrite()
        merges = self._seen.properties.get(_MERGES, "false").lower() == "true"
        return update.merge_append() if merges else update.fast_append()

    def _replace(self, snapshot: Any, batch: BatchRows, written: list[str]) -> None:
        """Takes rows away that have the keys of a batch. The files that their neighbours are
        written to are added to `written`.
        """
        from pyiceberg.expressions import AlwaysTrue

        # Below the batch's own files, as nobody else knows whether they are needed.
        place = "/".join([batch.files[0]["root"], *batch.files[0]["path"].split("/")[:2]])
        keys = KeySet(stored_rows(batch, batch.keys).read_all())
        snapshot.delete_by_predicate(AlwaysTrue())  # looks at all manifests for what is gone
        for replaced in replaced_files(self._seen, batch.keys, keys, place):
            snapshot.delete_data_file(replaced.old)
            if replaced.new is not None:
                written.append(replaced.new)

    def _once(self) -> Table:
        """The table as it was looked at, on which a change is tried once: pyiceberg's own retries
        would add files that another process has added meanwhile.
        """
        self._seen.metadata.properties.update(_NO_RETRIES)
        return self._seen

    def _settle(self, batch: BatchRows, application: str) -> None:
        if Location.of(self._seen.metadata_location).local is None:
            return
        noted = {_SINK: application, _BATCH: str(batch.number)}
        for snapshot in self._seen.snapshots():
            if noted.items() <= _told_by(snapshot).items():
                entries = [
                    entry
                    for manifest in self._manifests_of(snapshot)
                    for entry in manifest.fetch_manifest_entry(self._seen.io)
                    if entry.snapshot_id == snapshot.snapshot_id
                ]
                self._sync([entry.data_file.file_path for entry in entries], snapshot)

    def _manifests_of(self, snapshot: Snapshot) -> list[ManifestFile]:
        """Those that a snapshot has brought."""
        every = snapshot.manifests(self._seen.io)
        return [m for m in every if m.added_snapshot_id == snapshot.snapshot_id]

    def _sync(self, more: Sequence[str] = (), snapshot: Snapshot | None = None) -> None:
        """Makes durable what a change has written to a local table: pyiceberg does not."""
        where = Location.of(self._seen.metadata_location)
        if where.local is None:
            return
        written = [self._seen.metadata_location, *more]
        snapshot = snapshot or self._seen.current_snapshot()
        if snapshot is not None:
            new = [manifest.manifest_path for manifest in self._manifests_of(snapshot)]
            written += [snapshot.manifest_list, *new]
        paths = {path for text in written if (path := Location.of(text).local) is not None}
        folders = {folder for path in paths for folder in (path.parent, path.parent.parent)}
        for path in (*paths, *folders):
            _fsync(path)


def _told_by(snapshot: Snapshot) -> Mapping[str, str]:
    """What a snapshot says of itself."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _load(catalog: str | None, properties: Mapping[str, str]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    given: dict[str, Any] = dict(properties)
    return load_catalog(catalog, **given)


def _property(application: str) -> str:
    """The table's property that has the newest batch of a sink."""
    return f"{_BATCH}.{hashlib.sha256(application.encode()).hexdigest()[:16]}"


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
