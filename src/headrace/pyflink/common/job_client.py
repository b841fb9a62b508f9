"""`pyflink.common.job_client`: Headrace's job client, answering with futures as PyFlink's does."""

from __future__ import annotations

from typing import Any

from headrace.environment import JobClient as _JobClient
from headrace.environment import JobExecutionResult
from headrace.ids import JobId
from headrace.job.status import JobStatus
from headrace.pyflink.common.completable_future import CompletableFuture

__all__ = ["JobClient"]


class JobClient:
    """Headrace's job client; every method but `get_job_id` returns a future."""

    def __init__(self, client: _JobClient) -> None:
        self._client = client

    def get_job_id(self) -> JobId:
        return self._client.get_job_id()

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        return CompletableFuture(self._client.get_job_status)

    def cancel(self) -> CompletableFuture[None]:
        """Cancel the job; the future is done when the job has ended."""
        self._client.job.cancel()
        return CompletableFuture(self._wait_for_end, self._has_ended)

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        return CompletableFuture.of(lambda: self._client.trigger_savepoint(savepoint_directory))

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        stop = self._client.stop_with_savepoint
        return CompletableFuture.of(lambda: stop(advance_to_end_of_event_time, savepoint_directory))

    def cancel_with_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        return CompletableFuture.of(lambda: self._client.cancel_with_savepoint(savepoint_directory))

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """An empty dict: as in PyFlink, no Python function can register an accumulator."""
        return CompletableFuture(dict)

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """The result when the job has finished; its error if it failed."""
        return CompletableFuture(self._client.wait, self._has_ended)

    def _has_ended(self) -> bool:
        return self._client.get_job_status().is_terminal

    def _wait_for_end(self) -> None:
        self._client.job.wait()
