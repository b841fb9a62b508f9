"""The routes: Flink's paths (SPEC R10.1), with and without `/v1`; a refused request is a 4xx with the reason in `errors`.

Routes run in the threads of the REST server, in the driver.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from headgate.checkpoint.stats import CheckpointStats, StatsSnapshot, StatsTracker
from headgate.checkpoint.types import SavepointFormat
from headgate.driver.job import SparkJob
from headgate.errors import HeadgateError, InvalidArgument
from headgate.job_client import JobClient
from headgate.rest import documents
from headgate.rest.jobs import Jobs, UnknownJob
from headgate.rest.operations import Operations, UnknownOperation
from headgate.storage.checkpoints import dispose_savepoint
from headgate.storage.remote import open_store

Document = dict[str, Any]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    trigger_id: str | None = Field(None, alias="triggerId")


class CheckpointBody(_Body):
    """POST /jobs/:jobid/checkpoints."""

    checkpoint_type: str = Field("CONFIGURED", alias="checkpointType")


class SavepointBody(_Body):
    """POST /jobs/:jobid/savepoints."""

    target_directory: str | None = Field(None, alias="target-directory")
    cancel_job: bool = Field(False, alias="cancel-job")
    format_type: SavepointFormat = Field(SavepointFormat.CANONICAL, alias="formatType")


class StopBody(_Body):
    """POST /jobs/:jobid/stop."""

    target_directory: str | None = Field(None, alias="targetDirectory")
    drain: bool = False
    format_type: SavepointFormat = Field(SavepointFormat.CANONICAL, alias="formatType")


class DisposalBody(_Body):
    """POST /savepoint-disposal."""

    savepoint_path: str = Field(alias="savepoint-path")


class _Api:
    def __init__(self, jobs: Jobs, operations: Operations) -> None:
        self._jobs, self._operations = jobs, operations

    # --- jobs ---

    def list_jobs(self) -> Document:
        return {"jobs": [{"id": job.job_id, "status": job.status.value} for job in self._jobs.all()]}

    def overview(self) -> Document:
        return {"jobs": [documents.job_overview(job) for job in self._jobs.all()]}

    def job(self, job_id: str) -> Document:
        return documents.job_details(self._jobs.find(job_id))

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

    # --- checkpoints ---

    def _tracker(self, job_id: str) -> StatsTracker:
        stats = self._jobs.find(job_id).stats
        if stats is None:
            raise HTTPException(409, f"job {job_id} has not started yet")
        return stats

    def _stats(self, job_id: str) -> StatsSnapshot:
        return self._tracker(job_id).snapshot()

    def metrics(self, job_id: str, get: str | None = None) -> list[Document]:
        """The names of the job's metrics, or the values of those that `get` names; unknown ones are left out."""
        gauges = self._tracker(job_id).gauges()
        if get is None:
            return [{"id": name} for name in gauges]
        return [{"id": name, "value": str(gauges[name])} for name in get.split(",") if name in gauges]

    def checkpoints(self, job_id: str) -> Document:
        return documents.checkpoints(self._stats(job_id))

    def checkpoint_config(self, job_id: str) -> Document:
        return documents.checkpoint_config(self._jobs.find(job_id).configuration)

    def _checkpoint(self, job_id: str, checkpoint_id: int) -> CheckpointStats:
        found = self._stats(job_id).find(checkpoint_id)
        if found is None:
            raise HTTPException(
                404,
                f"checkpoint {checkpoint_id} of job {job_id} is not known, or not kept any more (web.checkpoints.history)",
            )
        return found

    def checkpoint(self, job_id: str, checkpoint_id: int) -> Document:
        graph = self._jobs.find(job_id).plan.graph
        names = {vertex.id: documents.vertex_id(vertex) for vertex in graph.vertices}
        return documents.checkpoint_details(self._checkpoint(job_id, checkpoint_id), names)

    def subtasks(self, job_id: str, checkpoint_id: int, vertex_id: str) -> Document:
        stats = self._checkpoint(job_id, checkpoint_id)
        for vertex in self._jobs.find(job_id).plan.graph.vertices:
            if documents.vertex_id(vertex) == vertex_id and vertex.id in stats.vertices:
                return documents.subtask_details(stats, stats.vertices[vertex.id], vertex_id)
        raise HTTPException(404, f"vertex {vertex_id} has no part in checkpoint {checkpoint_id} of job {job_id}")

    def trigger_checkpoint(self, job_id: str, body: CheckpointBody | None = None) -> Document:
        body = body or CheckpointBody.model_validate({})
        if body.checkpoint_type not in {"CONFIGURED", "FULL"}:
            raise HTTPException(400, f"checkpointType is '{body.checkpoint_type}': it must be CONFIGURED or FULL")
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

    def rescale(self, job_id: str, parallelism: int) -> Document:
        if parallelism < 1:
            raise HTTPException(400, f"parallelism is {parallelism}: it must be at least 1")
        client = JobClient(self._running(job_id))
        return self._start("rescaling", None, lambda: client.rescale(parallelism), job_id)

    def dispose(self, body: DisposalBody) -> Document:
        return self._start(
            "disposal", body.trigger_id, lambda: dispose_savepoint(open_store(), body.savepoint_path).deleted
        )

    # --- operations ---

    def _start(self, kind: str, request_id: str | None, work: Callable[[], Any], job_id: str | None = None) -> Document:
        return {"request-id": self._operations.start(kind, request_id, work, job_id)}

    def status(self, kind: str, result: str, failure: str = "failure-cause") -> Callable[[str, Request], Document]:
        """The route for the status of operations of a kind."""

        def status(trigger_id: str, request: Request) -> Document:
            job_id = request.path_params.get("job_id")
            if job_id is not None:
                self._jobs.find(job_id)
            return documents.operation(self._operations.find(kind, trigger_id, job_id), result, failure)

        return status


def _router(api: _Api) -> APIRouter:
    router = APIRouter()
    job, accepted = "/jobs/{job_id}", 202
    router.get("/jobs")(api.list_jobs)
    router.get("/jobs/overview")(api.overview)
    router.get(job)(api.job)
    router.patch(job, status_code=accepted)(api.cancel)
    router.get(f"{job}/metrics")(api.metrics)
    router.get(f"{job}/checkpoints")(api.checkpoints)
    router.post(f"{job}/checkpoints", status_code=accepted)(api.trigger_checkpoint)
    router.get(f"{job}/checkpoints/config")(api.checkpoint_config)
    router.get(f"{job}/checkpoints/details/{{checkpoint_id}}")(api.checkpoint)
    router.get(f"{job}/checkpoints/details/{{checkpoint_id}}/subtasks/{{vertex_id}}")(api.subtasks)
    router.post(f"{job}/savepoints", status_code=accepted)(api.trigger_savepoint)
    router.post(f"{job}/stop", status_code=accepted)(api.stop)
    router.patch(f"{job}/rescaling", status_code=accepted)(api.rescale)
    router.post("/savepoint-disposal", status_code=accepted)(api.dispose)
    router.get(f"{job}/checkpoints/{{trigger_id}}")(api.status("checkpoint", "checkpointId", "failureCause"))
    router.get(f"{job}/savepoints/{{trigger_id}}")(api.status("savepoint", "location"))
    router.get(f"{job}/rescaling/{{trigger_id}}")(api.status("rescaling", "parallelism"))
    router.get("/savepoint-disposal/{trigger_id}")(api.status("disposal", "deleted"))
    return router


def make_app(jobs: Jobs, hosts: Sequence[str], token: str | None = None, store_seconds: float = 300.0) -> FastAPI:
    """The application. It answers only to the host names in `hosts`, so that no web page can reach it under another one.

    With a `token` every request must carry `Authorization: Bearer <token>`.
    """
    app = FastAPI(title="Headgate", docs_url="/docs", redoc_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    app.state.operations = Operations(store_seconds)
    router = _router(_Api(jobs, app.state.operations))
    app.include_router(router)
    app.include_router(router, prefix="/v1")
    if token is not None:
        app.middleware("http")(_require(token))
    for kind in (HTTPException, RequestValidationError, HeadgateError):
        app.add_exception_handler(kind, _refused)
    return app


def _require(token: str) -> Any:
    expected = f"Bearer {token}".encode()

    async def check(request: Request, call_next: Any) -> Response:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, expected):
            return _errors(
                401,
                "give the token as 'Authorization: Bearer ...'; `headgate token` prints it to the user who runs the driver",
            )
        answer: Response = await call_next(request)
        return answer

    return check


def _errors(status: int, *messages: str) -> JSONResponse:
    return JSONResponse({"errors": list(messages)}, status_code=status)


def _refused(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        return _errors(error.status_code, str(error.detail))
    if isinstance(error, RequestValidationError):
        return _errors(400, *(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()))
    status = (
        404 if isinstance(error, UnknownOperation | UnknownJob) else 400 if isinstance(error, InvalidArgument) else 409
    )
    return _errors(status, str(error))
