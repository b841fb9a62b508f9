"""`pyflink.datastream.formats.parquet`."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
from msgspec.structs import replace

from headrace.config import Configuration
from headrace.connectors.avro import AvroCodec
from headrace.connectors.files.formats import FileFormat, FilePart, ParquetReader, PartReader
from headrace.connectors.values import CorruptRecord
from headrace.errors import InvalidArgument
from headrace.pyflink._without_effect import warn_without_effect
from headrace.pyflink.common.serialization import BulkWriterFactory
from headrace.pyflink.datastream.connectors.file_system import BulkFormat, StreamFormat
from headrace.pyflink.datastream.formats.avro import AvroSchema
from headrace.records.batch import Batch
from headrace.records.types import Row, TypeInformation

__all__ = ["AvroParquetReaders", "AvroParquetWriters", "ParquetBulkWriters", "ParquetColumnarRowInputFormat"]


def _row_type(schema: AvroSchema) -> TypeInformation:
    type = AvroCodec(schema.text).type()
    if type.kind != "row":
        raise InvalidArgument(
            "HR-8004", f"Parquet needs an Avro record without unions of several types, got {schema.text[:200]}"
        )
    return type


class _RecordFiles(FileFormat):
    """Parquet files as dicts."""

    suffix = "parquet"

    def __init__(self, rows: TypeInformation) -> None:
        self._rows = rows

    def reader(self, part: FilePart, file: Any) -> PartReader:
        if part.end is None:
            part = replace(part, end=pq.ParquetFile(file).num_row_groups)
        return _RecordReader(part, file, self._rows)


class _RecordReader(ParquetReader):
    def read(self, max_records: int) -> tuple[Batch, list[tuple[str, CorruptRecord]]]:
        batch, bad = super().read(max_records)
        return Batch.of_rows([_as_dict(row) for row in batch.rows()]), bad


def _as_dict(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: _as_dict(one) for name, one in value.as_dict().items()}
    if isinstance(value, list):
        return [_as_dict(one) for one in value]
    return {key: _as_dict(one) for key, one in value.items()} if isinstance(value, dict) else value


class AvroParquetReaders:
    """Reads Parquet files as Avro records."""

    @staticmethod
    def for_generic_record(schema: AvroSchema) -> StreamFormat:
        """As dicts."""
        return StreamFormat(_RecordFiles(_row_type(schema)))


class AvroParquetWriters:
    """Writes Parquet files of Avro records."""

    @staticmethod
    def for_generic_record(schema: AvroSchema) -> BulkWriterFactory:
        """Of dicts, Rows or tuples that fit the schema."""
        return BulkWriterFactory("parquet", _row_type(schema))


class ParquetColumnarRowInputFormat(BulkFormat):
    """Reads Parquet files as Rows."""

    def __init__(
        self,
        row_type: TypeInformation,
        hadoop_config: Configuration | None = None,
        batch_size: int = 2048,
        is_utc_timestamp: bool = False,
        is_case_sensitive: bool = True,
    ) -> None:
        """Timestamps are in UTC; batches are as large as the job takes them."""
        if hadoop_config is not None:
            warn_without_effect("ParquetColumnarRowInputFormat(hadoop_config)")
        if not is_case_sensitive:
            raise InvalidArgument(
                "HR-8004", "ParquetColumnarRowInputFormat: names of columns are case-sensitive; use those of the files"
            )
        super().__init__("parquet", row_type)


class ParquetBulkWriters:
    """Writes Parquet files."""

    @staticmethod
    def for_row_type(
        row_type: TypeInformation, hadoop_config: Configuration | None = None, utc_timestamp: bool = False
    ) -> BulkWriterFactory:
        """Timestamps are in UTC."""
        if hadoop_config is not None:
            warn_without_effect("ParquetBulkWriters.for_row_type(hadoop_config)")
        return BulkWriterFactory("parquet", row_type)
