"""One REST server for each driver process: it starts with the first job and serves all of them, in a thread of its own."""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import uvicorn

from headgate import config
from headgate.config import Configuration
from headgate.driver.job import SparkJob
from headgate.errors import ConfigError
from headgate.rest.app import Jobs, make_app
from headgate.rest.operations import Operations
from headgate.storage.local import private_directory

_LOG = logging.getLogger(__name__)
_PORTS = 100  # how many are tried, beginning with rest.port
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_lock = threading.Lock()
_jobs = Jobs()
_url: str | None = None
_operations: Operations | None = None
_LINGER_SECONDS = 3.0


def register(job: SparkJob, configuration: Configuration) -> str | None:
    """List a job in REST; the server's address, or None if REST is switched off.

    ConfigError if REST would be reachable by others without a token; the job is not listed then.
    """
    global _url  # noqa: PLW0603 - one server for each process
    if not configuration.get(config.REST_ENABLED):
        return None
    with _lock:
        if _url is None:
            _url = _start(configuration)
        _jobs.add(job)
    return _url


def linger() -> None:
    """Wait a few seconds, before the process may end, until clients have read the results of their operations."""
    if _operations is not None:
        _operations.linger(_LINGER_SECONDS)


def _start(configuration: Configuration) -> str | None:
    address = configuration.get(config.REST_ADDRESS)
    token = configuration.get(config.REST_TOKEN)
    if address not in _LOOPBACK and not token:
        raise ConfigError(
            f"rest.address is {address}, which others can reach: set headgate.rest.token to a secret that requests must carry, "
            "or leave rest.address at 127.0.0.1"
        )
    listener = _listen(address, configuration.get(config.REST_PORT))
    if listener is None:
        _LOG.warning("no free port for REST from %s on; the job runs without REST", configuration.get(config.REST_PORT))
        return None
    port = listener.getsockname()[1]
    hosts = list(_LOOPBACK) if address in _LOOPBACK else ["*"]
    seconds = configuration.get(config.REST_STORE_DURATION) / 1000
    app = make_app(_jobs, hosts, token, seconds)
    global _operations  # noqa: PLW0603 - one server for each process
    _operations = app.state.operations
    atexit.register(linger)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))
    threading.Thread(target=server.run, args=([listener],), name="headgate-rest", daemon=True).start()
    url = f"http://{'127.0.0.1' if address in _LOOPBACK else address}:{port}"
    _announce(url)
    return url


def _listen(address: str, first: int) -> socket.socket | None:
    for port in [0] if first == 0 else range(first, first + _PORTS):
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(128)
        except OSError:
            listener.close()
            continue
        return listener
    return None


# ---- finding servers -----------------------------------------------------------------------------------------------


def _directory() -> Path:
    return Path(tempfile.gettempdir()) / f"headgate-{os.getuid()}"


def _announce(url: str) -> None:
    """Write a file by which the command line of this user finds the server."""
    path = _directory() / f"{os.getpid()}.json"
    try:
        private_directory(path.parent)
        path.unlink(missing_ok=True)  # of a dead process with the same number
        with path.open("x") as file:
            json.dump({"pid": os.getpid(), "url": url}, file)
        atexit.register(lambda: path.unlink(missing_ok=True))
    except OSError as error:
        _LOG.warning("the command line does not find %s by itself, name it with --url: %s", url, error)


def known_servers() -> list[str]:
    """The addresses of this user's drivers on this machine; files of dead ones are deleted."""
    found = []
    directory = _directory()
    with suppress(OSError):
        found_directory = directory.lstat()
        if not stat.S_ISDIR(found_directory.st_mode) or found_directory.st_uid != os.getuid():
            return []
        for path in sorted(directory.glob("*.json")):
            with suppress(OSError, ValueError, KeyError):
                content = json.loads(path.read_text())
                if Path(f"/proc/{content['pid']}").exists() or not Path("/proc").exists():
                    found.append(str(content["url"]))
                else:
                    path.unlink()
    return found
