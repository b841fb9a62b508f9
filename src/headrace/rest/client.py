"""A client of REST for the command line: finds the drivers of this machine, sends requests, waits for operations."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from msgspec import structs

from headrace.errors import HeadraceError, InvalidArgument
from headrace.rest.discovery import TOKEN_RULE, TOKEN_VARIABLE, Server, is_token, known_servers

_POLL_SECONDS = 0.2
_ANSWER_SECONDS = 30.0  # more than reading a state may take
_OVERVIEW = ("jid", "name", "state", "start-time", "end-time", "duration", "tasks", "restarts")


class RestError(HeadraceError):
    """A driver refused a request, or cannot be reached."""

    class_code = "HR-7003"


class DriverUnreachable(RestError):
    """No driver answers at the address."""

    class_code = "HR-7001"


class DriverSilent(DriverUnreachable):
    """A driver has the connection open, and does not answer."""

    class_code = "HR-7002"


class RestClient:
    """Sends requests to one driver; `here`: it runs on this machine, and no proxy is to see the token."""

    def __init__(
        self, url: str, token: str | None = None, certificate: str | None = None, *, here: bool = False
    ) -> None:
        if not _is_address(url):
            raise InvalidArgument("HR-7008", f"'{url}' is no address of a driver; one looks like http://127.0.0.1:8081")
        if token and not is_token(token):
            raise InvalidArgument("HR-7009", f"{TOKEN_RULE}; check the environment variable {TOKEN_VARIABLE}")
        self.url, self._token = url.rstrip("/"), token
        # The certificate of an own driver is trusted as it is; SSL_CERT_FILE names what to trust of others.
        self._tls = ssl.create_default_context(cafile=certificate) if url.startswith("https:") else None
        if self._tls is not None and certificate is not None:
            self._tls.check_hostname = False
            self._tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=self._tls)]
        if here or is_loopback(urlsplit(url).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def send(self, method: str, path: str, body: dict[str, Any] | None = None, seconds: float | None = None) -> Any:
        """Return the response to a request, waiting this long; RestError if the driver refuses it."""
        body_of_answer = self._send(method, path, body, seconds or _ANSWER_SECONDS)
        try:
            return json.loads(body_of_answer or b"{}")
        except ValueError as error:
            raise DriverUnreachable(f"cannot reach the driver at {self.url}: {error}") from None

    def _send(self, method: str, path: str, body: dict[str, Any] | None, seconds: float) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 - checked above
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=seconds) as answer:
                found: bytes = answer.read()
                return found
        except urllib.error.HTTPError as error:
            raise RestError(_reason(error)) from None
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise DriverSilent(f"the driver at {self.url} has not answered for {seconds:.0f} s") from None
            raise DriverUnreachable(f"cannot reach the driver at {self.url}: {reason}") from None

    def send_text(self, path: str) -> str:
        """Return the response to a GET that is no JSON; RestError if the driver refuses it."""
        return self._send("GET", path, None, _ANSWER_SECONDS).decode("utf-8", "replace")

    def jobs(self, seconds: float | None = None) -> list[dict[str, Any]]:
        """The overview of the driver's jobs, waiting this long; DriverUnreachable if what answers is no driver."""
        found = self.send("GET", "/jobs/overview", seconds=seconds)
        try:
            jobs = [job for job in found["jobs"] if all(name in job for name in _OVERVIEW)]
            if len(jobs) == len(found["jobs"]):
                return jobs
        except (KeyError, TypeError):
            pass
        raise DriverUnreachable(f"cannot reach a driver at {self.url}: what answers there is none of Headrace")

    def operation(self, path: str, request_id: str) -> dict[str, Any]:
        """Wait until an operation is done; its result, or RestError if it failed."""
        while True:
            answer = self.send("GET", f"{path}/{request_id}")
            if answer["status"]["id"] == "COMPLETED":
                result: dict[str, Any] = answer["operation"]
                failure = result.get("failure-cause") or result.get("failureCause")
                if failure is not None:
                    raise RestError(failure["stack-trace"])
                return result
            time.sleep(_POLL_SECONDS)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # no closing bracket, or no port between 0 and 65535
        return False


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        reason = "; ".join(json.loads(error.read())["errors"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
    return f"{reason}; commands take it from {TOKEN_VARIABLE}" if error.code == HTTPStatus.UNAUTHORIZED else reason


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """A job and the driver that runs it."""

    client: RestClient
    overview: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.overview["jid"])

    @property
    def path(self) -> str:
        return f"/jobs/{self.id}"

    def get(self, path: str) -> Any:
        """Return the answer to a GET below the job's path."""
        return self.client.send("GET", self.path + path)


def find_servers(url: str | None) -> list[Server]:
    """The driver at `url`, or all drivers of this user on this machine; HEADRACE_REST_TOKEN is the token of any other."""
    servers = known_servers()
    if url is not None:
        servers = [one for one in servers if _is_same(one.url, url)] or [Server(0, url)]
    return [structs.replace(one, token=one.token or os.environ.get(TOKEN_VARIABLE)) for one in servers]


def _is_same(known: str, url: str) -> bool:
    """Return True if both are one address; loopback has several names."""
    if known == url.rstrip("/"):
        return True
    try:
        one, other = urlsplit(known), urlsplit(url)
        same_port = (one.scheme, one.port, other.path.strip("/")) == (other.scheme, other.port, "")
    except ValueError:
        return False
    return same_port and is_loopback(one.hostname or "") and other.hostname == "localhost"


def find_jobs(
    url: str | None, warn: Callable[[str], None] = lambda _: None, seconds: float | None = None
) -> list[RemoteJob]:
    """The jobs of one driver, or of all drivers of this user on this machine, which are asked at once; waits this long.

    `warn` is told of a driver that does not answer.
    """

    def ask(one: Server) -> list[RemoteJob] | DriverUnreachable:
        client = RestClient(one.url, one.token, one.certificate, here=one.pid > 0)
        try:
            return [RemoteJob(client, job) for job in client.jobs(seconds)]
        except DriverUnreachable as error:
            return error

    found = []
    servers = find_servers(url)
    with ThreadPoolExecutor(max(1, len(servers))) as threads:
        for one, answer in zip(servers, threads.map(ask, servers), strict=True):
            if isinstance(answer, list):
                found += answer
            elif url:
                raise answer
            elif isinstance(answer, DriverSilent):  # any other is just ending
                warn(f"{answer}: process {one.pid} is stopped, or too busy; its jobs are not listed")
    return found


def find_job(wanted: str, url: str | None) -> RemoteJob:
    """The job of this id, or the only one whose id starts with `wanted` or that has this name; RestError otherwise.

    Jobs that run come before those of the same name, or of the same id, that have ended.
    """
    if not wanted:
        raise InvalidArgument(
            "HR-7010", "the text that names the job is empty; give the beginning of its id, or its name"
        )
    silent: list[str] = []
    running_last = sorted(find_jobs(url, silent.append), key=lambda job: job.overview["state"] == "RUNNING")
    jobs = list({job.id: job for job in running_last}.values())  # a job that is resumed keeps its id
    named = [job for job in jobs if job.overview["name"] == wanted]
    named = [job for job in named if job.overview["state"] == "RUNNING"] or named
    matching = [job for job in jobs if job.id == wanted]
    matching = matching or [job for job in jobs if job in named or job.id.startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    problem = f"{len(matching)} jobs match '{wanted}'" if matching else f"there is no job '{wanted}'; known jobs"
    shown = ", ".join(f"{job.id[:8]} ({job.overview['name']})" for job in matching or jobs) or "none"
    raise RestError("HR-7010", "\n".join([f"{problem}: {shown}. Give more of the id, or --url of the driver", *silent]))
