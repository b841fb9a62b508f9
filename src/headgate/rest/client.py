"""A client of REST for the command line: finds the drivers of this machine, sends requests, waits for operations."""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from msgspec import structs

from headgate.errors import HeadgateError, InvalidArgument
from headgate.rest.discovery import TOKEN_RULE, TOKEN_VARIABLE, Server, is_token, known_servers

_POLL_SECONDS = 0.2


class RestError(HeadgateError):
    """A driver refused a request, or cannot be reached."""


class DriverUnreachable(RestError):
    """No driver answers at the address."""


class RestClient:
    def __init__(self, url: str, token: str | None = None, certificate: str | None = None) -> None:
        if not _is_address(url):
            raise InvalidArgument(f"'{url}' is no address of a driver; one looks like http://127.0.0.1:8081")
        if token and not is_token(token):
            raise InvalidArgument(f"{TOKEN_RULE}; check the environment variable {TOKEN_VARIABLE}")
        self.url, self._token = url.rstrip("/"), token
        # The certificate of an own driver is trusted as it is; SSL_CERT_FILE names what to trust of others.
        self._tls = ssl.create_default_context(cafile=certificate) if url.startswith("https:") else None
        if self._tls is not None and certificate is not None:
            self._tls.check_hostname = False
            self._tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The response to a request; RestError if the driver refuses it."""
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 - checked above
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._tls) as answer:  # noqa: S310
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise RestError(_reason(error)) from None
        except (OSError, HTTPException, ValueError) as error:
            raise DriverUnreachable(
                f"cannot reach the driver at {self.url}: {getattr(error, 'reason', error)}"
            ) from None

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


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return "; ".join(json.loads(error.read())["errors"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"


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


def find_servers(url: str | None) -> list[Server]:
    """The driver at `url`, or all drivers of this user on this machine; HEADGATE_REST_TOKEN is the token of any other."""
    servers = known_servers()
    if url is not None:
        servers = [one for one in servers if one.url == url.rstrip("/")] or [Server(0, url)]
    return [structs.replace(one, token=one.token or os.environ.get(TOKEN_VARIABLE)) for one in servers]


def find_jobs(url: str | None) -> list[RemoteJob]:
    """The jobs of one driver, or of all drivers of this user on this machine."""
    found = []
    for one in find_servers(url):
        client = RestClient(one.url, one.token, one.certificate)
        try:
            jobs = client.send("GET", "/jobs/overview")["jobs"]
        except DriverUnreachable:
            if url:
                raise
            continue  # it is just ending
        found += [RemoteJob(client, job) for job in jobs]
    return found


def find_job(wanted: str, url: str | None) -> RemoteJob:
    """The job of this id, or the only one whose id starts with `wanted` or that has this name; RestError otherwise.

    Jobs that run come before those of the same name, or of the same id, that have ended.
    """
    if not wanted:
        raise InvalidArgument("the text that names the job is empty; give the beginning of its id, or its name")
    running_last = sorted(find_jobs(url), key=lambda job: job.overview["state"] == "RUNNING")
    jobs = list({job.id: job for job in running_last}.values())  # a job that is resumed keeps its id
    named = [job for job in jobs if job.overview["name"] == wanted]
    named = [job for job in named if job.overview["state"] == "RUNNING"] or named
    matching = [job for job in jobs if job.id == wanted]
    matching = matching or [job for job in jobs if job in named or job.id.startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    problem = f"{len(matching)} jobs match '{wanted}'" if matching else f"there is no job '{wanted}'; known jobs"
    shown = ", ".join(f"{job.id[:8]} ({job.overview['name']})" for job in matching or jobs) or "none"
    raise RestError(f"{problem}: {shown}. Give more of the id, or --url of the driver")
