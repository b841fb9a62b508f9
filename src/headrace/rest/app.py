"""The routes: Flink's paths (SPEC R10.1) and our own, with and without `/v1`.

A refused request is a 4xx with the reason in `errors`. Routes read copies of what the job's thread keeps, and never wait for
it. Most run in the event loop of the REST server, those that wait for workers or storage in threads; who polls often gets
answers that were made a moment ago.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from functools import partial, wraps
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from headrace.checkpoint.stats import CheckpointStats, StatsSnapshot, StatsTracker
from headrace.checkpoint.types import SavepointFormat
from headrace.control.messages import RecordSample, SampleRecords, SampleStacks, StackSample
from headrace.driver.job import SparkJob
from headrace.driver.log_output import recent_log
from headrace.errors import HeadraceError, InvalidArgument
from headrace.graph.job_graph import Vertex
from headrace.job_client import JobClient
from headrace.rest import checkpoint_documents, documents, metric_documents, models, prometheus, vertices
from headrace.rest.access import Access
from headrace.rest.cache import Cache, PolledAnswers, PolledResponse, to_json
from headrace.rest.dashboard import Dashboard
from headrace.rest.event_stream import EventStream, JobChange, make_change
from headrace.rest.jobs import Jobs, UnknownJob
from headrace.rest.operations import Operations, TooManyOperations, UnknownOperation
from headrace.rest.reference import reference_page
from headrace.rest.state_browser import StateBrowser, UnknownCursor, key_groups
from headrace.storage.published_snapshots import dispose_savepoint
from headrace.storage.remote import open_store

Document = dict[str, Any]
Made = TypeVar("Made")
CACHE_SECONDS = 0.25
_SLOW_SECONDS = 5.0  # of answers that ask workers
_STACKS, _STACKS_MS = 50, 20
_PROBE_SECONDS = 10.0
_PROBES = 4  # requests that may wait for workers at once
_NEWEST = 3  # checkpoints that events tell of


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it has lone surrogates, which UTF-8 cannot carry") from None
    return text


def _part_of_path(text: str) -> str:
    """The result is asked for below this id, where other resources have names of their own."""
    if text in _TAKEN:
        raise ValueError(f"'{text}' names another resource; choose another id")
    return text


_Path = Annotated[str, AfterValidator(_utf8)]
_TAKEN = {"config", "details"}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    trigger_id: Annotated[
        Annotated[str, AfterValidator(_part_of_path)] | None,
        Field(alias="triggerId", min_length=1, max_length=100, pattern="^[A-Za-z0-9_-]+$"),
    ] = None


class CheckpointBody(_Body):
    """POST /jobs/:jobid/checkpoints."""

    checkpoint_type: Annotated[
        Literal["CONFIGURED", "FULL"], Field(alias="checkpointType", description="FULL writes everything anew")
    ] = "CONFIGURED"


class SavepointBody(_Body):
    """POST /jobs/:jobid/savepoints."""

    target_directory: _Path | None = Field(None, alias="target-directory")
    cancel_job: bool = Field(False, alias="cancel-job")
    format_type: SavepointFormat = Field(SavepointFormat.CANONICAL, alias="formatType")


class StopBody(_Body):
    """POST /jobs/:jobid/stop."""

    target_directory: _Path | None = Field(None, alias="targetDirectory")
    drain: bool = False
    format_type: SavepointFormat = Field(SavepointFormat.CANONICAL, alias="formatType")


class DisposalBody(_Body):
    """POST /savepoint-disposal."""

    savepoint_path: _Path = Field(alias="savepoint-path", min_length=1)


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _of_one_plan(make: Callable[[], Made]) -> Made:
    """Return the result of `make`; call it again if a rescale replaced the plan meanwhile."""
    try:
        return make()
    except LookupError:
        return make()


class _Api:
    def __init__(self, jobs: Jobs, operations: Operations, cache_seconds: float) -> None:
        self._jobs, self._operations = jobs, operations
        self.polled = PolledAnswers(cache_seconds)
        self._cache = Cache(cache_seconds)
        self._slow_cache = Cache(_SLOW_SECONDS if cache_seconds else 0.0)
        self._browser = StateBrowser()
        self._probing = 0
        self.events = EventStream(lambda: _of_one_plan(self._look))

    def _polled(self, make: Callable[[], object]) -> Response:
        return PolledResponse(lambda: _of_one_plan(make), self.polled)

    def _of_job(self, job_id: str, make: Callable[[SparkJob], object]) -> Response:
        return self._polled(lambda: make(self._jobs.find(job_id)))

    def _of_vertex(self, job_id: str, vertex_id: str, make: Callable[[SparkJob, Vertex], object]) -> Response:
        def found() -> object:
            job = self._jobs.find(job_id)
            return make(job, _vertex(job, vertex_id))

        return self._polled(found)

    def _cached(self, name: str, job: SparkJob, make: Callable[[], object], *more: Hashable) -> Response:
        """Return an answer that may take long; the job was found first, so that unknown ids fill no cache."""
        return _json(self._cache.get((name, id(job), *more), lambda: _of_one_plan(make)))

    # --- the driver ---

    def config(self) -> Response:
        return self._polled(documents.dashboard_config)

    def driver_overview(self) -> Response:
        return self._polled(lambda: documents.driver_overview(self._jobs.all()))

    def prometheus(self) -> Response:
        """Return the metrics of all jobs in Prometheus' text format."""
        jobs = [(job, None if job.stats is None else job.stats.snapshot()) for job in self._jobs.all()]
        # A label must not have an escape for what UTF-8 cannot carry: Prometheus would refuse the whole answer.
        text = _of_one_plan(lambda: prometheus.exposition(jobs)).encode("utf-8", "replace")
        return Response(text, media_type=prometheus.CONTENT_TYPE)

    def log(self) -> Response:
        """Return the newest lines of the driver's log."""
        text = recent_log().encode("utf-8", "backslashreplace")
        return Response(text, media_type="text/plain; charset=utf-8")

    # --- jobs ---

    def list_jobs(self) -> Response:
        def make() -> Document:
            return {"jobs": [{"id": job.job_id, "status": job.status.value} for job in self._jobs.all()]}

        return self._polled(make)

    def overview(self) -> Response:
        make = lambda: {"jobs": [documents.job_overview(job) for job in self._jobs.all()]}  # noqa: E731
        return self._polled(make)

    def job(self, job_id: str) -> Response:
        return self._of_job(job_id, documents.job_details)

    def plan(self, job_id: str) -> Response:
        return self._of_job(job_id, lambda job: {"plan": documents.plan(job)})

    def job_config(self, job_id: str) -> Response:
        return self._of_job(job_id, documents.job_config)

    def job_status(self, job_id: str) -> Response:
        return self._of_job(job_id, lambda job: {"status": job.status.value})

    def exceptions(
        self, job_id: str, max_exceptions: Annotated[int, Query(alias="maxExceptions", ge=0)] = 20
    ) -> Response:
        """Why attempts failed, the newest first."""
        make = partial(documents.exceptions, most=max_exceptions)
        return self._of_job(job_id, make)

    def story(self, job_id: str) -> Response:
        """The attempts of a job: what each restored, why and when it ended, how long the parts of its start took."""
        return self._of_job(job_id, documents.story)

    def accumulators(self, job_id: str) -> Response:
        """There are none."""
        empty: Document = {
            "job-accumulators": [],
            "user-task-accumulators": [],
            "serialized-user-task-accumulators": {},
        }
        return self._of_job(job_id, lambda _: empty)

    def cancel(self, job_id: str, mode: str = "cancel") -> Document:
        if mode != "cancel":
            raise HTTPException(400, f"mode is '{mode}', only 'cancel' is supported; POST /jobs/:jobid/stop stops")
        self._running(job_id).cancel()
        return {}

    def _running(self, job_id: str) -> SparkJob:
        job = self._jobs.find(job_id)
        if job.status.is_terminal:
            raise HTTPException(409, f"job {job_id} has ended: it is {job.status.value}")
        return job

    # --- metrics ---

    def metrics(self, job_id: str, get: str | None = None) -> Response:
        """Return the names of the job's metrics, or the values of those that `get` names; unknown ones are left out."""
        return self._of_job(job_id, lambda _: metric_documents.selected(self._tracker(job_id).gauges(), get))

    def vertex_metrics(self, job_id: str, vertex_id: str, get: str | None = None) -> Response:
        """As the job's; each name has the number of its subtask before it."""

        def make(job: SparkJob, vertex: Vertex) -> object:
            return metric_documents.selected(metric_documents.numbered(_metrics_of(job, vertex)), get)

        return self._of_vertex(job_id, vertex_id, make)

    def subtask_metrics(self, job_id: str, vertex_id: str, subtask: int, get: str | None = None) -> Response:
        def make(job: SparkJob, vertex: Vertex) -> object:
            _check_subtask(vertex, subtask)
            return metric_documents.selected(_metrics_of(job, vertex).get(subtask, {}), get)

        return self._of_vertex(job_id, vertex_id, make)

    def aggregated_metrics(
        self,
        job_id: str,
        vertex_id: str,
        get: str | None = None,
        agg: str | None = None,
        subtasks: Annotated[str | None, Query(max_length=10_000)] = None,
    ) -> Response:
        """Each metric over the subtasks: min, max, avg and sum, or those that `agg` names."""
        wanted = _numbers(subtasks)

        def make(job: SparkJob, vertex: Vertex) -> object:
            by_subtask = _metrics_of(job, vertex)
            parts = [part for index, part in by_subtask.items() if any(index in numbers for numbers in wanted)]
            return metric_documents.aggregated(parts, get, agg)

        return self._of_vertex(job_id, vertex_id, make)

    # --- vertices ---

    def vertex(self, job_id: str, vertex_id: str) -> Response:
        return self._of_vertex(job_id, vertex_id, vertices.vertex_details)

    def subtask(self, job_id: str, vertex_id: str, subtask: int) -> Response:
        def make(job: SparkJob, vertex: Vertex) -> object:
            _check_subtask(vertex, subtask)
            return vertices.subtask(job, vertex, subtask, job.subtasks().get(vertex.id, {}))

        return self._of_vertex(job_id, vertex_id, make)

    def subtask_times(self, job_id: str, vertex_id: str) -> Response:
        return self._of_vertex(job_id, vertex_id, vertices.subtask_times)

    def hosts(self, job_id: str, vertex_id: str) -> Response:
        return self._of_vertex(job_id, vertex_id, vertices.hosts)

    def vertex_accumulators(self, job_id: str, vertex_id: str) -> Response:
        """There are none."""
        empty = {"id": vertex_id, "user-accumulators": []}
        return self._of_vertex(job_id, vertex_id, lambda _job, _vertex: empty)

    def back_pressure(self, job_id: str, vertex_id: str) -> Response:
        return self._of_vertex(job_id, vertex_id, vertices.back_pressure)

    def watermarks(self, job_id: str, vertex_id: str) -> Response:
        return self._of_vertex(job_id, vertex_id, vertices.watermarks)

    def flame_graph(
        self,
        job_id: str,
        vertex_id: str,
        type: Literal["FULL", "ON_CPU", "OFF_CPU"] = "FULL",
        subtask: Annotated[int | None, Query(alias="subtaskindex")] = None,
    ) -> Response:
        """Sample the stacks of the subtasks' threads for a second; the response is cached for some seconds."""
        job, vertex = self._for_probe(job_id, vertex_id, subtask)

        def make() -> Document:
            question = job.probe(vertex.id, lambda number: SampleStacks(number, _STACKS, _STACKS_MS), subtask)
            answers = self._probed(lambda: question.wait(_PROBE_SECONDS))
            samples = [answer for _, answer in answers if isinstance(answer, StackSample)]
            return vertices.flame_graph(samples, type) | {"missingSubtasks": question.missing}

        return _json(self._slow_cache.get(("flamegraph", id(job), vertex_id, type, subtask), make))

    def sample(
        self,
        job_id: str,
        vertex_id: str,
        records: Annotated[int, Query(ge=1, le=1000)] = 20,
    ) -> Response:
        """Return some of the records that a vertex has sent last, as text."""
        job, vertex = self._for_probe(job_id, vertex_id, None)

        def make() -> Document:
            question = job.probe(vertex.id, lambda number: SampleRecords(number, records))
            answers = self._probed(lambda: question.wait(_PROBE_SECONDS))
            found = [answer.records for _, answer in answers if isinstance(answer, RecordSample)]
            share = -(-records // max(1, sum(map(bool, found))))
            sent = [record for part in found for record in part[-share:]][:records]
            return {"records": sent, "missing_subtasks": question.missing}

        return self._cached("sample", job, make, vertex_id, records)

    def _for_probe(self, job_id: str, vertex_id: str, subtask: int | None) -> tuple[SparkJob, Vertex]:
        job = self._running(job_id)
        vertex = _vertex(job, vertex_id)
        if subtask is not None:
            _check_subtask(vertex, subtask)
        return job, vertex

    def _probed(self, wait: Callable[[], Any]) -> Any:
        """Wait for workers, unless too many requests do so already: others need threads too."""
        if self._probing >= _PROBES:
            raise HTTPException(429, "too many requests wait for samples of workers: try again in a moment")
        self._probing += 1
        try:
            return wait()
        finally:
            self._probing -= 1

    # --- checkpoints ---

    def _tracker(self, job_id: str) -> StatsTracker:
        stats = self._jobs.find(job_id).stats
        if stats is None:
            raise HTTPException(409, f"job {job_id} has not started yet")
        return stats

    def _stats(self, job_id: str) -> StatsSnapshot:
        return self._tracker(job_id).snapshot()

    def checkpoints(self, job_id: str) -> Response:
        return self._of_job(job_id, lambda _: checkpoint_documents.checkpoints(self._stats(job_id)))

    def checkpoint_config(self, job_id: str) -> Response:
        make = lambda job: checkpoint_documents.checkpoint_config(job.configuration)  # noqa: E731
        return self._of_job(job_id, make)

    def _checkpoint(self, job_id: str, checkpoint_id: int) -> CheckpointStats:
        found = self._stats(job_id).find(checkpoint_id)
        if found is None:
            raise HTTPException(
                404,
                f"checkpoint {checkpoint_id} of job {job_id} is not known, or not kept any more (web.checkpoints.history)",
            )
        return found

    def checkpoint(self, job_id: str, checkpoint_id: int) -> Response:
        make = lambda _: checkpoint_documents.checkpoint_details(self._checkpoint(job_id, checkpoint_id))  # noqa: E731
        return self._of_job(job_id, make)

    def subtasks(self, job_id: str, checkpoint_id: int, vertex_id: str) -> Response:
        def make(_: SparkJob) -> object:
            stats = self._checkpoint(job_id, checkpoint_id)
            of_vertex = checkpoint_documents.by_head(stats).get(vertex_id)
            if of_vertex is None:
                raise HTTPException(
                    404, f"vertex {vertex_id} has no part in checkpoint {checkpoint_id} of job {job_id}"
                )
            return checkpoint_documents.subtask_details(stats, of_vertex, vertex_id)

        return self._of_job(job_id, make)

    def timeline(self, job_id: str, checkpoint_id: int) -> Response:
        """Return the times at which each subtask received the barriers and ended each part of its work."""
        make = lambda job: checkpoint_documents.timeline(self._checkpoint(job_id, checkpoint_id), job.plan.graph)  # noqa: E731
        return self._of_job(job_id, make)

    def trigger_checkpoint(self, job_id: str, body: CheckpointBody | None = None) -> Document:
        body = body or CheckpointBody.model_validate({})
        client = JobClient(self._running(job_id))
        full = body.checkpoint_type == "FULL"
        return self._start("checkpoint", body.trigger_id, lambda: client.trigger_checkpoint(full), job_id)

    def trigger_savepoint(self, job_id: str, body: SavepointBody | None = None) -> Document:
        body = body or SavepointBody.model_validate({})
        client = JobClient(self._running(job_id))

        def work() -> str:
            path = client.trigger_savepoint(body.target_directory, body.format_type)
            if body.cancel_job:
                client.cancel()
            return path

        return self._start("savepoint", body.trigger_id, work, job_id)

    def stop(self, job_id: str, body: StopBody | None = None) -> Document:
        body = body or StopBody.model_validate({})
        client = JobClient(self._running(job_id))
        work = lambda: client.stop_with_savepoint(body.drain, body.target_directory, body.format_type)  # noqa: E731
        return self._start("savepoint", body.trigger_id, work, job_id)

    def rescale(self, job_id: str, parallelism: Annotated[int, Query(ge=1, le=1 << 15)]) -> Document:
        client = JobClient(self._running(job_id))
        return self._start("rescaling", None, lambda: client.rescale(parallelism), job_id)

    def dispose(self, body: DisposalBody) -> Document:
        return self._start(
            "disposal", body.trigger_id, lambda: dispose_savepoint(open_store(), body.savepoint_path).deleted
        )

    # --- state ---

    def state_files(self, job_id: str) -> Response:
        """Return the figures that the policy for full checkpoints compares, over time, with its limits."""

        def make(job: SparkJob) -> object:
            return checkpoint_documents.state_files(self._stats(job_id), job.configuration, job.plan.graph)

        return self._of_job(job_id, make)

    def key_groups(self, job_id: str) -> Response:
        """Return the key groups of the subtasks with keyed state, and how much of it each has."""
        job = self._jobs.find(job_id)
        return self._cached("key-groups", job, lambda: key_groups(job))

    def states(self, job_id: str) -> Response:
        """Return the states of the newest completed checkpoint."""
        job = self._jobs.find(job_id)
        return self._cached("states", job, lambda: self._browser.states(job))

    def state(
        self,
        job_id: str,
        operator: str,
        state: str,
        key: Annotated[str | None, Query(description="A key as JSON", max_length=10_000)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
        after: Annotated[str | None, Query(description="`next` of the page before", max_length=100)] = None,
    ) -> Response:
        """Entries of a state in the newest completed checkpoint: of one key, or page by page."""
        job = self._jobs.find(job_id)
        make = partial(self._browser.page, job, operator, state, limit, key, after)
        if after is not None:  # a cursor moves on with every request
            return _json(to_json(make()))
        return self._cached("state", job, make, operator, state, key, limit)

    # --- events ---

    async def event_stream(self, job: str | None = None) -> StreamingResponse:
        """Server-sent events: `job`, `metrics` and `checkpoint`, whenever they change."""
        if job is not None:
            self._jobs.find(job)
        if self.events.full:
            raise HTTPException(429, "too many clients listen to events: close some")
        return StreamingResponse(_bytes(self.events.stream(job)), media_type="text/event-stream")

    def _look(self) -> list[JobChange]:
        """Return the current changes for the event stream; called in a thread."""
        found = []
        for job in self._jobs.all():
            found.append(make_change(job.job_id, "job", documents.job_overview(job), ignored=("duration",)))
            if job.status.is_terminal:
                continue
            metrics_of = {"jid": job.job_id, "vertices": vertices.job_vertices(job)}
            found.append(make_change(job.job_id, "metrics", metrics_of))
            newest = () if job.stats is None else job.stats.snapshot(_NEWEST).history
            for one in reversed(newest):
                document = {"jid": job.job_id, **checkpoint_documents.checkpoint(one)}
                found.append(make_change(job.job_id, "checkpoint", document, key=one.id))
        return found

    # --- operations ---

    def _start(self, kind: str, request_id: str | None, work: Callable[[], Any], job_id: str | None = None) -> Document:
        return {"request-id": self._operations.start(kind, request_id, work, job_id)}

    def status(self, kind: str, result: str, failure: str = "failure-cause") -> Callable[..., Document]:
        """Return the route for the status of operations of a kind, on a job."""

        def status(job_id: str, trigger_id: str) -> Document:
            self._jobs.find(job_id)
            operation = self._operations.find(kind, trigger_id, job_id)
            return documents.operation(operation, result, failure)

        return status

    def disposal(self, trigger_id: str) -> Document:
        return documents.operation(self._operations.find("disposal", trigger_id), "deleted", "failure-cause")


async def _bytes(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for event in events:
        yield event


def _vertex(job: SparkJob, vertex_id: str) -> Vertex:
    for vertex in job.plan.graph.vertices:
        if vertices.vertex_id(vertex) == vertex_id:
            return vertex
    raise HTTPException(404, f"job {job.job_id} has no vertex {vertex_id}")


def _check_subtask(vertex: Vertex, subtask: int) -> None:
    if not 0 <= subtask < vertex.parallelism:
        raise HTTPException(
            404, f"vertex '{vertex.name}' has no subtask {subtask}: its parallelism is {vertex.parallelism}"
        )


def _metrics_of(job: SparkJob, vertex: Vertex) -> dict[int, dict[str, float]]:
    return metric_documents.vertex_metrics(job, vertex, None if job.stats is None else job.stats.snapshot())


def _numbers(text: str | None) -> list[range]:
    """Numbers and ranges of subtasks, as in `0,2-4`; without a text, all.

    >>> _numbers("0,2-4")
    [range(0, 1), range(2, 5)]
    """
    if text is None:
        return [range(1 << 31)]
    try:
        parts = [part.partition("-") for part in text.split(",")]
        return list({range(int(first), int(last or first) + 1): None for first, _, last in parts})
    except ValueError:
        raise HTTPException(
            400, f"subtasks is '{text}': numbers and ranges are separated by commas, as in 0,2-4"
        ) from None


def _in_the_loop(read: Callable[..., Made]) -> Callable[..., Awaitable[Made]]:
    """Return a route that is run by the event loop itself: to hand it to a thread costs more than most answers."""

    @wraps(read)
    async def route(*args: Any, **options: Any) -> Made:
        return read(*args, **options)

    return route


def _router(api: _Api) -> APIRouter:
    router = APIRouter(responses={"4XX": {"model": models.Errors, "description": "The request was refused."}})
    job = "/jobs/{job_id}"
    vertex, details = f"{job}/vertices/{{vertex_id}}", f"{job}/checkpoints/details/{{checkpoint_id}}"
    reads: list[tuple[str, Callable[..., Any], Any]] = [
        ("/config", api.config, models.DashboardConfig),
        ("/overview", api.driver_overview, models.DriverOverview),
        ("/jobs", api.list_jobs, models.JobList),
        ("/jobs/overview", api.overview, models.JobsOverview),
        (job, api.job, models.JobDetails),
        (f"{job}/plan", api.plan, models.PlanAnswer),
        (f"{job}/config", api.job_config, models.JobConfigAnswer),
        (f"{job}/status", api.job_status, models.JobStatusAnswer),
        (f"{job}/exceptions", api.exceptions, models.ExceptionsAnswer),
        (f"{job}/story", api.story, models.StoryAnswer),
        (f"{job}/accumulators", api.accumulators, models.Accumulators),
        (f"{job}/metrics", api.metrics, list[models.MetricValue]),
        (vertex, api.vertex, models.VertexDetails),
        (f"{vertex}/metrics", api.vertex_metrics, list[models.MetricValue]),
        (f"{vertex}/subtasks/metrics", api.aggregated_metrics, list[models.MetricAggregate]),
        (f"{vertex}/subtasks/{{subtask}}", api.subtask, models.SubtaskModel),
        (f"{vertex}/subtasks/{{subtask}}/metrics", api.subtask_metrics, list[models.MetricValue]),
        (f"{vertex}/subtasktimes", api.subtask_times, models.SubtaskTimesAnswer),
        (f"{vertex}/taskmanagers", api.hosts, models.HostsOfVertex),
        (f"{vertex}/accumulators", api.vertex_accumulators, models.UserAccumulators),
        (f"{vertex}/backpressure", api.back_pressure, models.BackPressure),
        (f"{vertex}/watermarks", api.watermarks, list[models.MetricValue]),
        (f"{vertex}/flamegraph", api.flame_graph, models.FlameGraph),
        (f"{vertex}/sample", api.sample, models.Sample),
        (f"{job}/checkpoints", api.checkpoints, models.Checkpoints),
        (f"{job}/checkpoints/config", api.checkpoint_config, models.CheckpointConfigAnswer),
        (details, api.checkpoint, models.Checkpoint),
        (f"{details}/subtasks/{{vertex_id}}", api.subtasks, models.TaskCheckpointDetails),
        (f"{details}/timeline", api.timeline, models.Timeline),
        (f"{job}/state-files", api.state_files, models.StateFiles),
        (f"{job}/key-groups", api.key_groups, models.KeyGroups),
        (f"{job}/state", api.states, models.States),
        (f"{job}/state/{{operator}}/{{state:path}}", api.state, models.StatePage),
    ]
    slow = [api.flame_graph, api.sample, api.key_groups, api.states, api.state]  # they wait for workers or for storage
    for path, read, model in reads:
        router.get(path, response_model=model)(read if read in slow else _in_the_loop(read))
    triggers: list[tuple[str, str, Callable[..., Any], Any]] = [
        ("PATCH", job, api.cancel, models.Nothing),
        ("POST", f"{job}/checkpoints", api.trigger_checkpoint, models.Triggered),
        ("POST", f"{job}/savepoints", api.trigger_savepoint, models.Triggered),
        ("POST", f"{job}/stop", api.stop, models.Triggered),
        ("PATCH", f"{job}/rescaling", api.rescale, models.Triggered),
        ("POST", "/savepoint-disposal", api.dispose, models.Triggered),
    ]
    for method, path, trigger, model in triggers:
        router.add_api_route(path, trigger, methods=[method], status_code=202, response_model=model)
    results = {
        f"{job}/checkpoints/{{trigger_id}}": api.status("checkpoint", "checkpointId", "failureCause"),
        f"{job}/savepoints/{{trigger_id}}": api.status("savepoint", "location"),
        f"{job}/rescaling/{{trigger_id}}": api.status("rescaling", "parallelism"),
        "/savepoint-disposal/{trigger_id}": api.disposal,
    }
    for path, result in results.items():
        router.get(path, response_model=models.OperationModel, response_model_exclude_unset=True)(result)
    text: dict[int | str, Any] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
    router.get("/metrics/prometheus", response_class=Response, responses=text)(api.prometheus)
    router.get("/jobmanager/log", response_class=Response, responses=text)(api.log)
    stream: dict[int | str, Any] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
    router.get("/events", response_class=StreamingResponse, responses=stream)(api.event_stream)
    return router


def make_app(
    jobs: Jobs,
    hosts: Sequence[str],
    token: str | None = None,
    store_seconds: float = 300.0,
    cache_seconds: float = CACHE_SECONDS,
    *,
    secure: bool = False,
) -> FastAPI:
    """The application. It answers only to the host names in `hosts`, so that no web page can reach it under another one.

    With a `token` every request must carry it (`access.py`); `secure`: it is served by TLS.
    """
    app = FastAPI(title="Headrace", docs_url=None, redoc_url=None)
    app.state.operations = Operations(store_seconds)
    api = _Api(jobs, app.state.operations, cache_seconds)
    router = _router(api)
    app.include_router(router)
    app.include_router(router, prefix="/v1", include_in_schema=False)
    app.add_api_route("/", lambda: RedirectResponse("ui/", 303), include_in_schema=False)
    app.add_api_route("/docs", lambda: HTMLResponse(reference_page(app.openapi())), include_in_schema=False)
    app.mount("/ui", Dashboard(), name="ui")
    app.add_middleware(api.polled.middleware)
    app.add_middleware(Access, hosts=hosts, token=token, secure=secure)
    for kind in (HTTPException, RequestValidationError, HeadraceError):
        app.add_exception_handler(kind, _refused)
    return app


def _errors(status: int, *messages: str) -> Response:
    return _json(to_json({"errors": messages}), status)


_STATUS: dict[type[HeadraceError], int] = {
    UnknownOperation: 404,
    UnknownJob: 404,
    UnknownCursor: 404,
    TooManyOperations: 429,
    InvalidArgument: 400,
}


def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        answer = _errors(error.status_code, str(error.detail or HTTPStatus(error.status_code).phrase))
        answer.headers.update(error.headers or {})
        return answer
    if isinstance(error, RequestValidationError):
        return _errors(400, *(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()))
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 409)
    return _errors(status, str(error))
