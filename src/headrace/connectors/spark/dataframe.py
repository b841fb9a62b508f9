"""Any bounded Spark DataFrame as a source: `env.from_dataframe(df)`.

A regular Spark job writes it once to Parquet, before the dataflow starts; the files and their row groups are what the subtasks
read. So any plan works, and what is read again after a failure is the same, to the row.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.api.sources import DynamicSource, OnceEnumerator, ReaderContext, SourceReader, SplitEnumerator
from headrace.connectors.files.formats import FileSplit
from headrace.connectors.files.source import FileSource
from headrace.connectors.spark.epochs import for_spark
from headrace.connectors.spark.staged import remove_all
from headrace.errors import InvalidArgument
from headrace.records.types import as_type

__all__ = ["DataFrameSource"]


class DataFrameSource(DynamicSource[FileSplit]):
    """The rows of a DataFrame.

    >>> DataFrameSource(spark.range(3)).type  # doctest: +SKIP
    row<id bigint>
    """

    bounded = True

    def __init__(self, frame: DataFrame) -> None:
        if frame.isStreaming:
            raise InvalidArgument(
                "HR-4303",
                "from_dataframe() needs a bounded DataFrame, and this one is a stream; for a Python data source use "
                "from_source(PythonDataSource(...))",
            )
        self._frame: DataFrame | None = frame
        self.type = as_type(pa.schema(list(to_arrow_schema(frame.schema, timezone="UTC"))))
        self._place: str | None = None
        self._staged = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_frame": None, "type": self.type, "_place": self._place, "_staged": self._staged}

    def place(self, directory: str) -> None:
        """Say below which directory the rows are kept while the job needs them."""
        self._place, self._staged = f"{directory}/dataframe-{uuid4().hex[:12]}", False

    def stage(self) -> None:
        """Write the rows, once."""
        if not self._staged:
            assert self._frame is not None, "the rows are written on the driver"
            assert self._place is not None, "the environment says where"
            self._frame.write.parquet(for_spark(self._place))
            self._staged = True

    def forget(self) -> None:
        """Delete the rows: the job has finished."""
        if self._staged and self._place is not None:
            remove_all(self._place)

    def _files(self) -> FileSource:
        assert self._place is not None
        return FileSource(self._place, "parquet", self.type)

    def enumerator(self, restored: Any | None) -> SplitEnumerator[FileSplit]:
        """Make the enumerator, which finds the files on the driver."""
        return OnceEnumerator(self.find, restored)

    def find(self) -> list[FileSplit]:
        """Return the splits of the staged files; the rows are staged now unless they are already."""
        self.stage()
        return list(self._files().enumerator(None).discover())

    def reader(self, context: ReaderContext, splits: list[FileSplit]) -> SourceReader[FileSplit]:
        """Make the reader of one subtask."""
        return self._files().reader(context, splits)
