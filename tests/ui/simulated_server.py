"""REST of simulated jobs, with the dashboard in front of it: what the driver serves, without a driver."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator

import uvicorn
from simulated_job import Document, SimulatedJob
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route

from headrace.rest.dashboard import Dashboard


class SimulatedServer:
    """Serves jobs; `url` is the address of the dashboard."""

    def __init__(self, *jobs: SimulatedJob) -> None:
        self.jobs = {job.jid: job for job in jobs}
        self.token: str | None = None  # what the cookie must carry
        self.streams = 0  # clients of the event stream
        self.streaming = True
        self._results: dict[str, Document] = {}
        self._app = Starlette(routes=[*self._routes(), Mount("/v1", routes=self._routes()), Mount("/ui", Dashboard())])
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.origin = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"{self.origin}/ui/"

    def job(self, request: Request) -> SimulatedJob:
        return self.jobs[request.path_params["job"]]

    @contextlib.contextmanager
    def run(self) -> Iterator[SimulatedServer]:
        server = uvicorn.Server(
            uvicorn.Config(self._app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, args=([self._socket],), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.should_exit = True
            thread.join(10)

    # ---- documents ---------------------------------------------------------------------------------------------------

    def _routes(self) -> list[BaseRoute]:
        job = lambda read: self._answer(lambda request: read(self.job(request), request))  # noqa: E731
        vertex = lambda request: int(request.path_params["vertex"], 16)  # noqa: E731
        found = lambda one, request: one.find_checkpoint(int(request.path_params["checkpoint"]))  # noqa: E731
        at, checkpoint = "/jobs/{job}", "/jobs/{job}/checkpoints/details/{checkpoint}"
        documents = {
            "/jobs/overview": self._answer(lambda _: {"jobs": [one.overview() for one in self.jobs.values()]}),
            at: job(lambda one, _: one.details()),
            f"{at}/config": job(lambda one, _: one.config()),
            f"{at}/exceptions": job(lambda one, _: one.exceptions()),
            f"{at}/story": job(lambda one, _: one.story()),
            f"{at}/state-files": job(lambda one, _: one.state_files()),
            f"{at}/key-groups": job(lambda one, _: one.key_groups()),
            f"{at}/state": job(lambda one, _: one.states()),
            f"{at}/state/{{operator}}/{{state:path}}": job(self._entries),
            f"{at}/vertices/{{vertex}}": job(lambda one, request: one.vertex(vertex(request))),
            f"{at}/vertices/{{vertex}}/flamegraph": job(lambda one, request: one.flamegraph(vertex(request))),
            f"{at}/vertices/{{vertex}}/sample": job(
                lambda one, request: one.sample(vertex(request), int(request.query_params["records"]))
            ),
            f"{at}/checkpoints": job(lambda one, _: one.checkpoint_statistics()),
            f"{at}/checkpoints/config": job(lambda one, _: one.checkpoint_config()),
            checkpoint: job(lambda one, request: one.checkpoint_details(found(one, request))),
            f"{checkpoint}/timeline": job(lambda one, request: one.timeline(found(one, request))),
            f"{checkpoint}/subtasks/{{vertex}}": job(
                lambda one, request: one.checkpoint_subtasks(found(one, request), vertex(request))
            ),
            f"{at}/{{kind}}/{{operation}}": self._answer(
                lambda request: self._results[request.path_params["operation"]]
            ),
        }
        changes = {
            ("POST", f"{at}/checkpoints"): self._checkpoint,
            ("POST", f"{at}/savepoints"): self._savepoint,
            ("POST", f"{at}/stop"): self._stop,
            ("PATCH", f"{at}/rescaling"): self._rescale,
            ("PATCH", at): self._cancel,
        }
        return [
            Route("/events", self._events),
            *(Route(path, self._change(change), methods=[method]) for (method, path), change in changes.items()),
            *(Route(path, answer) for path, answer in documents.items()),
        ]

    def _refusal(self, request: Request) -> Response | None:
        if self.token is not None and request.cookies.get("headrace-token") != self.token:
            return JSONResponse({"errors": ["give the token"]}, 401)
        if request.path_params.get("job", next(iter(self.jobs))) not in self.jobs:
            return JSONResponse({"errors": [f"job {request.path_params['job']} is not known"]}, 404)
        if request.method != "GET" and request.headers.get("x-requested-with") != "headrace":
            return JSONResponse({"errors": ["the header X-Requested-With is missing"]}, 403)
        return None

    def _answer(self, read):
        async def answer(request: Request) -> Response:
            return self._refusal(request) or JSONResponse(read(request))

        return answer

    def _entries(self, job: SimulatedJob, request: Request) -> Document:
        query = request.query_params
        key = json.loads(query["key"]) if "key" in query else None
        return job.entries(request.path_params["state"], key, int(query.get("limit", 50)), int(query.get("after", 0)))

    # ---- changes -----------------------------------------------------------------------------------------------------

    def _change(self, change):
        async def answer(request: Request) -> Response:
            if refusal := self._refusal(request):
                return refusal
            job = self.job(request)
            body = json.loads(await request.body() or b"{}")
            job.requests.append((request.method, str(request.url.path), {**request.query_params, **body}))
            operation = f"operation-{len(self._results)}"
            if job.failing is not None:
                failure = {"class": "CheckpointFailed", "stack-trace": job.failing}
                result = {"failure-cause": failure, "failureCause": failure}
            else:
                result = change(job, {**request.query_params, **body})
            self._results[operation] = {"status": {"id": "COMPLETED"}, "operation": result}
            return JSONResponse({"request-id": operation}, 202)

        return answer

    @staticmethod
    def _checkpoint(job: SimulatedJob, body: Document) -> Document:
        return {"checkpointId": job.checkpoint(full=body["checkpointType"] == "FULL")["id"]}

    @staticmethod
    def _savepoint(job: SimulatedJob, body: Document) -> Document:
        job.checkpoint(savepoint=True)
        return {"location": f"{body.get('target-directory', 's3://savepoints')}/savepoint-1"}

    @staticmethod
    def _stop(job: SimulatedJob, body: Document) -> Document:
        job.state, job.ended = "FINISHED", time.time_ns() // 1_000_000
        return {"location": f"{body.get('targetDirectory', 's3://savepoints')}/savepoint-2"}

    @staticmethod
    def _rescale(job: SimulatedJob, body: Document) -> Document:
        job.parallelism = int(body["parallelism"])
        return {}

    @staticmethod
    def _cancel(job: SimulatedJob, body: Document) -> Document:
        job.state, job.ended = "CANCELED", time.time_ns() // 1_000_000
        return {}

    # ---- events ------------------------------------------------------------------------------------------------------

    async def _events(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        if not self.streaming:
            return JSONResponse({"errors": ["there is no event stream"]}, 404)
        return StreamingResponse(self._stream(request), media_type="text/event-stream")

    async def _stream(self, request: Request) -> AsyncIterator[str]:
        job = self.jobs[request.query_params["job"]]
        self.streams += 1
        try:
            overview, newest = None, job.history[0]["id"] if job.history else 0
            while self.streaming:
                event = lambda name, data: f"event: {name}\ndata: {json.dumps(data)}\n\n"  # noqa: E731
                now = {**job.overview(), "duration": 0}
                if now != overview:
                    overview = now
                    yield event("job", job.overview())
                yield event("metrics", {"vertices": job.vertices()})
                for one in reversed([one for one in job.history if one["id"] > newest]):
                    newest = one["id"]
                    yield event("checkpoint", one)
                await asyncio.sleep(0.5)
        finally:
            self.streams -= 1
