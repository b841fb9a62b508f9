"""A Delta table as a sink: every checkpoint is one commit of the table, and no checkpoint is committed twice.

Subtasks write Parquet files into the table's directory, which no reader sees before they are in the table's log. The
driver adds all files of a checkpoint in one commit that carries the commit number as an application transaction: a
commit that is repeated finds its number there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.api.sink import Epoch, EpochCommitter, EpochContext, Sink, SinkWriter, WriterContext
from headrace.connectors.files.sink import check_partitions
from headrace.connectors.files.targets import PreparedFile
from headrace.connectors.spark.staged import StagedParquet
from headrace.errors import InvalidArgument, install_hint
from headrace.records.types import TypeInformation

__all__ = ["DeltaSink"]


class DeltaSink(Sink[PreparedFile]):
    """Appends to a Delta table, which is made if it is not there. Needs the extra `delta`.

    `storage_options` are those of the `deltalake` package, for tables on object stores.

    >>> DeltaSink("/data/orders", partition_by=["day"]).path
    '/data/orders'
    """

    output_kind = "delta"
    commits_on_driver = True

    def __init__(
        self, path: str, *, partition_by: Sequence[str] = (), storage_options: Mapping[str, str] | None = None
    ) -> None:
        self.path = path.removeprefix("file://").rstrip("/")
        self.partition_by = [partition_by] if isinstance(partition_by, str) else list(partition_by)
        self._options = dict(storage_options or {})

    def __repr__(self) -> str:
        return f"DeltaSink('{self.path}')"  # the options may hold secrets

    def check(self, stream_type: TypeInformation) -> None:
        """Raise an error if records of this type do not fit the table."""
        if stream_type.kind not in ("row", "tuple") or stream_type.schema is None:
            raise InvalidArgument(
                "HR-1203",
                f"{self!r} needs a stream with named fields: declare output_type, for example 'word string, n bigint'",
            )
        check_partitions(repr(self), self.partition_by, stream_type)
        self._check_table(stream_type)

    def _check_table(self, type: TypeInformation) -> None:
        table = self._open()
        if table is None or type.schema is None:
            return
        own = {field.name: str(field.type) for field in table.schema().fields}
        from deltalake import Schema

        ours = {field.name: str(field.type) for field in Schema.from_arrow(type.schema).fields}
        if own != ours:
            raise InvalidArgument("HR-4401", f"{self!r} has the fields {own}, but the stream has {ours}")
        if table.metadata().partition_columns != self.partition_by:
            raise InvalidArgument(
                "HR-4401",
                f"{self!r} is partitioned by {table.metadata().partition_columns}, but partition_by is {self.partition_by}",
            )

    def _open(self) -> Any | None:
        """The table, if there is one."""
        try:
            from deltalake import DeltaTable
        except ImportError as error:
            raise InvalidArgument(
                "HR-1108", f"{self!r} needs the deltalake package: {install_hint('delta')}"
            ) from error
        if not DeltaTable.is_deltatable(self.path, self._options or None):
            return None
        return DeltaTable(self.path, storage_options=self._options or None)

    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[PreparedFile]:
        """Writes the files of one subtask."""
        return StagedParquet(self.path, self.partition_by).writer(context, [])

    def epoch_committer(self, context: EpochContext) -> EpochCommitter[PreparedFile]:
        """Adds them to the table."""
        return _DeltaCommitter(self, f"headrace-{context.job_id}-{context.operator_id}", context.type)

    def table(self, type: TypeInformation) -> Any:
        """The table; it is made for records of this type if it is not there."""
        table = self._open()
        if table is None:
            from deltalake import DeltaTable

            assert type.schema is not None, "check() has seen the type"
            table = DeltaTable.create(
                self.path,
                type.schema,
                mode="ignore",
                partition_by=self.partition_by,
                storage_options=self._options or None,
            )
        return table


class _DeltaCommitter(EpochCommitter[PreparedFile]):
    def __init__(self, sink: DeltaSink, application: str, type: TypeInformation) -> None:
        self._sink, self._application, self._type = sink, application, type

    def commit(self, epoch: Epoch[PreparedFile]) -> None:
        from deltalake import CommitProperties, Transaction

        table = self._sink.table(self._type)
        done = table.transaction_version(self._application)
        if done is not None and done >= epoch.commit_number:
            return
        files = list(epoch.committables)
        if done is None:
            # The first commit of this job: what a savepoint brought may have been committed by the job that took it.
            known = {uri.rpartition("/")[2] for uri in table.file_uris()}
            files = [file for file in files if file.path.rpartition("/")[2] not in known]
        properties = CommitProperties(app_transactions=[Transaction(self._application, epoch.commit_number)])
        table.create_write_transaction(
            [self._add(file) for file in files],
            mode="append",
            schema=table.schema(),
            partition_by=self._sink.partition_by,
            commit_properties=properties,
        )

    def _add(self, file: PreparedFile) -> Any:
        from deltalake.transaction import AddAction

        name, now = file.path.removeprefix(f"{self._sink.path}/"), time.time_ns() // 1_000_000
        return AddAction(name, file.size, file.partition, now, True, json.dumps({"numRecords": file.rows}))
