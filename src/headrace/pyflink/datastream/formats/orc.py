"""`pyflink.datastream.formats.orc`."""

from __future__ import annotations

from headrace.config import Configuration
from headrace.pyflink._without_effect import warn_without_effect
from headrace.pyflink.common.serialization import BulkWriterFactory
from headrace.records.types import TypeInformation

__all__ = ["OrcBulkWriters"]


class OrcBulkWriters:
    """Writes ORC files."""

    @staticmethod
    def for_row_type(
        row_type: TypeInformation,
        writer_properties: Configuration | None = None,
        hadoop_config: Configuration | None = None,
    ) -> BulkWriterFactory:
        if hadoop_config is not None or writer_properties is not None:
            warn_without_effect("OrcBulkWriters.for_row_type(hadoop_config)")
        if not isinstance(row_type, TypeInformation) or row_type.kind != "row":
            raise TypeError("row_type must be an instance of RowType")
        return BulkWriterFactory("orc", row_type)
