"""`pyflink.datastream.formats.orc`."""

from __future__ import annotations

from headrace.config import Configuration
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
        """Options of Hadoop and of Java's writer have no effect."""
        if not isinstance(row_type, TypeInformation) or row_type.kind != "row":
            raise TypeError("row_type must be an instance of RowType")
        return BulkWriterFactory("orc", row_type)
