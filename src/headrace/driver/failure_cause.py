"""Why an attempt failed: one cause out of what workers, the control plane and Spark said about it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pyspark.sql import SparkSession

from headrace.checkpoint.handles import CorruptState
from headrace.control.messages import Failed, FailureKind
from headrace.driver import spark as spark_internals
from headrace.errors import HeadraceError, JobCancelled, JobFailed, UserCodeError, WorkerLost
from headrace.graph.plan import JobPlan

_ERRORS: dict[FailureKind, type[HeadraceError]] = {
    "user": UserCodeError,
    "runtime": JobFailed,
    "damaged": CorruptState,
    "lost": WorkerLost,
    "victim": WorkerLost,
}


def choose_cause(
    plan: JobPlan,
    spark: SparkSession,
    group: str,
    failures: Sequence[Failed],
    error: BaseException | None,
    ended_by_us: bool,
) -> HeadraceError:
    """Damaged state before the user's own error, that before ours, ours before a lost worker, that before Spark's words.

    `failures` are in the order in which they came, `error` is how Spark's job ended, `ended_by_us` says that it was
    stopped because of one of the failures (or a cancel), so that Spark's word "cancelled" means nothing.
    """
    if isinstance(error, HeadraceError):
        return error
    if (ours := _first(failures, "damaged", "user", "runtime")) is not None:
        return ours
    if spark_internals.is_stopped(spark):
        return JobFailed("HR-6006", "the Spark session was stopped while the job ran")
    if spark_internals.was_cancelled(error) and not ended_by_us:
        return JobCancelled(f"job '{plan.name}' was cancelled in Spark: {spark_internals.reason(error)}")
    if spark_internals.executor_lost(error):
        return WorkerLost(f"an executor died: {spark_internals.reason(error)}")
    return _first(failures, "lost", "victim") or WorkerLost(_spark_words(plan, spark, group, error))


def _first(failures: Sequence[Failed], *kinds: FailureKind) -> HeadraceError | None:
    """The first failure of the first kind that there is."""
    for failure in (failure for kind in kinds for failure in failures if failure.kind == kind):
        error = _ERRORS[failure.kind](failure.message)
        if failure.traceback:
            error.add_note(failure.traceback)
        return error
    return None


def _spark_words(plan: JobPlan, spark: SparkSession, group: str, error: BaseException | None) -> str:
    reason = spark_internals.reason(error)
    task = None
    with contextlib.suppress(Exception):  # the context may be on its way out: its words without the name, then
        task = spark_internals.failed_task(spark, group, error)
    if task is None:
        return f"Spark ended the job: {reason}"
    return f"Spark ended the job because of {plan.task_name(*task)}: {reason}"
