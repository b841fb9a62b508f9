"""`pyflink.datastream.stream_execution_environment`."""

from __future__ import annotations

from headgate.environment import StreamExecutionEnvironment as _Environment
from headgate.errors import InvalidArgument
from headgate.pyflink.common.job_client import JobClient
from headgate.pyflink.datastream.checkpoint_config import CheckpointConfig
from headgate.pyflink.datastream.execution_mode import RuntimeExecutionMode

__all__ = ["StreamExecutionEnvironment"]


class StreamExecutionEnvironment(_Environment):
    """Headgate's environment with PyFlink's job client, runtime mode and settings of checkpoints.

    >>> from headgate.testing import local_runtime
    >>> with local_runtime():
    ...     env = StreamExecutionEnvironment.get_execution_environment()
    >>> list(env.from_collection([1, 2]).map(lambda n: n + 1).execute_and_collect())
    [2, 3]
    """

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        """STREAMING and AUTOMATIC change nothing; BATCH is refused."""
        if execution_mode is RuntimeExecutionMode.BATCH:
            raise InvalidArgument(
                "RuntimeExecutionMode.BATCH: Headgate always streams, so reduce() and sum() emit every running result and "
                "not only the last; drop set_runtime_mode() if that suits you, or use Spark itself for batch jobs"
            )
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        return CheckpointConfig(self.get_configuration())

    def execute_async(self, job_name: str | None = None) -> JobClient:  # type: ignore[override]
        """Start the program; PyFlink's client returns futures."""
        return JobClient(super().execute_async(job_name))
