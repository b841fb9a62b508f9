"""REST documents of the driver and its jobs: Flink's field names, filled from the job (SPEC R10.1)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from msgspec.structs import asdict as to_document

from headrace import config
from headrace.control.messages import escaped
from headrace.driver.job import SparkJob
from headrace.driver.services import driver_time
from headrace.graph.job_graph import Vertex
from headrace.job.job_events import Worker
from headrace.job.restart import from_configuration
from headrace.job.status import ExecutionState, JobStatus
from headrace.rest import vertices
from headrace.rest.models import JobExecutionConfig
from headrace.rest.vertices import vertex_id

Document = dict[str, Any]
_FLINK = "2.3"  # the release whose resources are offered
_REFRESH_MS = 3000


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:  # run from its sources
        return "development"


# ---- the driver ----------------------------------------------------------------------------------------------------


def dashboard_config() -> Document:
    return {
        "refresh-interval": _REFRESH_MS,
        "timezone-name": time.tzname[0],
        "timezone-offset": time.localtime().tm_gmtoff * 1000,
        "flink-version": _FLINK,
        "flink-revision": f"headrace {_version()}",
        "headrace-version": _version(),
        "features": {"web-submit": False, "web-cancel": True, "web-rescale": True, "web-history": False},
    }


def driver_overview(jobs: Iterable[SparkJob]) -> Document:
    jobs = list(jobs)
    running = [job for job in jobs if not job.status.is_terminal]
    statuses = Counter(job.status for job in jobs)
    return {
        "taskmanagers": len({worker.host for job in running for worker in job.workers().values()}),
        "slots-total": sum(job.plan.layout.slots for job in running),
        "slots-available": 0,
        "jobs-running": len(running),
        "jobs-finished": statuses[JobStatus.FINISHED],
        "jobs-cancelled": statuses[JobStatus.CANCELED],
        "jobs-failed": statuses[JobStatus.FAILED],
        "flink-version": _FLINK,
        "flink-commit": f"headrace {_version()}",
    }


# ---- jobs ----------------------------------------------------------------------------------------------------------


def _times(job: SparkJob) -> Document:
    ended = job.ended_ms
    return {
        "jid": job.job_id,
        "name": job.plan.name,
        "state": job.status.value,
        "start-time": job.begun_ms,
        "end-time": -1 if ended is None else ended,
        "duration": (driver_time() if ended is None else ended) - job.begun_ms,
        "pending-operators": 0,
        "restarts": job.restarts,
    }


def job_overview(job: SparkJob) -> Document:
    """One line of the list of jobs."""
    states = Counter(job.machine.task_state(worker) for worker in _workers(job))
    changed = max([job.begun_ms, *job.machine.story.statuses.copy().values()])
    return {
        **_times(job),
        "last-modification": changed if job.ended_ms is None else job.ended_ms,
        "jobType": "STREAMING",
        "tasks": {"total": states.total(), **{one.value.lower(): states[one] for one in ExecutionState}},
    }


def _workers(job: SparkJob) -> list[Worker]:
    """Those that run subtasks."""
    return [worker for vertex in job.plan.graph.vertices for worker in job.plan.workers_of(vertex.id)]


def job_details(job: SparkJob) -> Document:
    """Return a job with its vertices."""
    found = vertices.job_vertices(job)
    counts = Counter(dict.fromkeys(ExecutionState, 0))
    for vertex in found:
        counts[ExecutionState[vertex["status"]]] += 1
    statuses = job.machine.story.statuses.copy()
    return {
        **_times(job),
        "isStoppable": True,
        "job-type": "STREAMING",
        "maxParallelism": max(vertex.max_parallelism for vertex in job.plan.graph.vertices),
        "now": driver_time(),
        "timestamps": {status.value: statuses.get(status, 0) for status in JobStatus},
        "vertices": found,
        "status-counts": {state.value: count for state, count in counts.items()},
        "plan": plan(job),
        "failures": job.failure_log,
        "spark-ui": job.spark_ui,
    }


def plan(job: SparkJob) -> Document:
    """Return the graph of a job."""
    graph = job.plan.graph
    return {
        "jid": job.job_id,
        "name": job.plan.name,
        "type": "STREAMING",
        "nodes": [_node(job, vertex) for vertex in reversed(graph.vertices)],
    }


def _node(job: SparkJob, vertex: Vertex) -> Document:
    graph = job.plan.graph
    return {
        "id": vertex_id(vertex),
        "parallelism": vertex.parallelism,
        "operator": "",
        "operator_strategy": "",
        "description": " -> ".join(operator.description for operator in vertex.operators),
        "optimizer_properties": {},
        "inputs": [
            {
                "num": number,
                "id": vertex_id(graph.vertices[edge.source]),
                "ship_strategy": edge.partitioning.kind.upper(),
                "exchange": "pipelined_bounded",
            }
            for number, edge in enumerate(graph.inputs(vertex.id))
        ],
        "operators": [
            {"id": one.id, "name": one.name, "uid": one.uid, "call-site": one.call_site} for one in vertex.operators
        ],
    }


def job_config(job: SparkJob) -> Document:
    conf = job.configuration
    checkpointing = conf.get(config.CHECKPOINT_INTERVAL) is not None
    execution = JobExecutionConfig(
        restart_strategy=from_configuration(conf, checkpointing).describe(),
        job_parallelism=conf.get(config.PARALLELISM),
        object_reuse_mode=conf.get(config.OBJECT_REUSE),
        user_config={key: text for key, text, _ in conf.changed()},
    )
    return {"jid": job.job_id, "name": job.plan.name, "execution-config": execution.model_dump(by_alias=True)}


# ---- failures ------------------------------------------------------------------------------------------------------


def exceptions(job: SparkJob, most: int) -> Document:
    """Why attempts failed, the newest first."""
    story = job.machine.story
    failed = [attempt for attempt in reversed(list(story.attempts)) if attempt.cause is not None]
    entries = []
    for attempt in failed[:most]:
        cause = attempt.cause
        assert cause is not None
        entries.append(
            {
                "exceptionName": cause.error,
                "stacktrace": cause.message if cause.traceback is None else f"{cause.message}\n\n{cause.traceback}",
                "timestamp": attempt.stopping or attempt.ended or attempt.started,
                "taskName": cause.operator,
                "endpoint": None,
                "taskManagerId": None,
                "failureLabels": {} if cause.location is None else {"location": cause.location},
                "concurrentExceptions": [],
            }
        )
    return {"exceptionHistory": {"entries": entries, "truncated": len(failed) > most or story.dropped > 0}}


def story(job: SparkJob) -> Document:
    """Return the attempts of a job, the oldest first: what each restored, how it ended, how long its start took."""
    told = job.machine.story
    return {
        "attempts": [
            {
                "number": attempt.number,
                "started": attempt.started,
                "running": attempt.running,
                "ended": attempt.ended,
                "outcome": attempt.outcome.value,
                "cause": attempt.cause and to_document(attempt.cause),
                "restored_checkpoint": attempt.restored_checkpoint,
                "phases": to_document(told.phases(attempt)),
            }
            for attempt in list(told.attempts)
        ],
        "dropped": told.dropped,
    }


# ---- operations ----------------------------------------------------------------------------------------------------


def operation(future: Future[Any], result_name: str, failure_name: str) -> Document:
    """Return the state of an operation: its result or why it failed, once it is done."""
    if not future.done():
        return {"status": {"id": "IN_PROGRESS"}, "operation": None}
    error = future.exception()
    if error is None:
        result = future.result()
        return {"status": {"id": "COMPLETED"}, "operation": {} if result is None else {result_name: result}}
    cause = escaped({"class": type(error).__name__, "stack-trace": str(error)})
    return {"status": {"id": "COMPLETED"}, "operation": {failure_name: cause}}
