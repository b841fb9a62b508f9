"""`foreach_epoch`: each completed checkpoint's output as a Spark DataFrame, for whatever Spark can write to.

Subtasks stage their records as Parquet on the checkpoints' storage. When the checkpoint is complete the function gets them
as one DataFrame, on the driver, in the user's session. Staged files are deleted when it has returned: that they are gone
says that the epoch is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.api.sink import Epoch, EpochCommitter, EpochContext, Sink, SinkWriter, WriterContext
from headrace.connectors.files.targets import PreparedFile
from headrace.connectors.spark.staged import StagedParquet, remove_all
from headrace.errors import InvalidArgument
from headrace.records.types import TypeInformation
from headrace.storage.remote import open_store

__all__ = ["EpochSink", "for_spark", "forget"]


class EpochSink(Sink[PreparedFile]):
    """Hands every epoch to `function(df, commit_number)`; use it through `stream.foreach_epoch(function)`.

    After a failure the function may get an epoch again, with the same number and the same rows: a function that stores the
    number with its output (in a Delta transaction, in a row of a table) can recognise that.

    >>> EpochSink(print).commits_on_driver
    True
    """

    output_kind = "epochs"
    commits_on_driver = True
    needs_staging = True

    def __init__(self, function: Callable[[Any, int], object]) -> None:
        if not callable(function):
            raise InvalidArgument(
                "HR-1202", f"foreach_epoch() needs a function of (df, commit_number), got {function!r}"
            )
        self._function: Callable[[Any, int], object] | None = function

    def check(self, stream_type: TypeInformation) -> None:
        """Raise an error for untyped records: a DataFrame has typed columns."""
        if not stream_type.is_typed:
            raise InvalidArgument(
                "HR-1203",
                "foreach_epoch() needs a stream with a type: declare output_type, for example 'word string, n bigint'",
            )

    def __getstate__(self) -> dict[str, Any]:
        # The function stays on the driver: it may refer to the session, which cannot travel.
        return {"_function": None}

    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[PreparedFile]:
        """Stages the records of one subtask."""
        assert context.staging is not None
        directory = staging_directory(context.staging, context.operator_id)
        return StagedParquet(directory).writer(context, [])

    def epoch_committer(self, context: EpochContext) -> EpochCommitter[PreparedFile]:
        """Make the committer, which calls the function."""
        assert self._function is not None
        return _EpochFunctionCommitter(self._function, context.spark)


def staging_directory(staging: str, operator_id: str) -> str:
    """Return the staging directory of one sink.

    >>> staging_directory("/chk/taskowned", "cbc357cc")
    '/chk/taskowned/epochs-cbc357cc'
    """
    return f"{staging}/epochs-{operator_id}"


def forget(staging: str, operator_id: str) -> None:
    """Delete what is left of a finished job: records that workers staged who died before they were in a checkpoint."""
    remove_all(staging_directory(staging, operator_id))


class _EpochFunctionCommitter(EpochCommitter[PreparedFile]):
    def __init__(self, function: Callable[[Any, int], object], spark: Any) -> None:
        self._function, self._spark, self._store = function, spark, open_store()

    def commit(self, epoch: Epoch[PreparedFile]) -> None:
        paths = [file.path for file in epoch.committables]
        if all(map(self._store.exists, paths)):  # else it was done before: only who has seen it done deletes them
            self._function(self._spark.read.parquet(*map(for_spark, paths)), epoch.commit_number)
        for path in paths:
            self._store.delete(path)


def for_spark(path: str) -> str:
    """Spark's name for a path: local ones with their scheme, whatever its default file system is; S3 through s3a.

    >>> for_spark("/data/x"), for_spark("s3://bucket/x")
    ('file:///data/x', 's3a://bucket/x')
    """
    if path.startswith("/"):
        return f"file://{path}"
    return path.replace("s3://", "s3a://", 1) if path.startswith("s3://") else path
