"""One REST server for each driver process: it starts with the first job and serves all of them, in a thread of its own."""

from __future__ import annotations

import atexit
import ipaddress
import logging
import os
import secrets
import socket
import ssl
import stat
import threading
from pathlib import Path
from typing import NamedTuple

from headrace import config
from headrace.config import Configuration, Origin
from headrace.driver.job import SparkJob
from headrace.driver.log_output import is_on_terminal
from headrace.errors import ConfigError
from headrace.rest.discovery import TOKEN_RULE, TOKEN_VARIABLE, announce, is_token, login_address
from headrace.rest.jobs import Jobs
from headrace.rest.operations import Operations

_LOG = logging.getLogger(__name__)
_PORTS = 100  # how many are tried, beginning with rest.port
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")  # as a request names its host


class _Access(NamedTuple):
    """The address of the server and its protection; `tls` are the files of certificate and key."""

    address: str
    token: str | None
    tls: tuple[str, str] | None


_lock = threading.Lock()
_jobs = Jobs()
_url: str | None = None
_access: _Access | None = None
_operations: Operations | None = None
_LINGER_SECONDS = 3.0


def register(job: SparkJob, configuration: Configuration) -> str | None:
    """List a job in REST; the address for a browser, or None if REST is switched off.

    The address carries the token only if a person reads it on a terminal: logs are kept, and read by others.

    ConfigError if REST would be reachable by others without a token, or if the job asks for another protection than that of
    the server, which an earlier job has started; the job is not listed then.
    """
    global _url  # noqa: PLW0603 - one server for each process
    if not configuration.get(config.REST_ENABLED):
        return None
    with _lock:
        if _url is None:
            _url = _start(configuration)
        elif _access is not None:
            _check_access(configuration, _access)
        _jobs.add(job)
    token = None if _access is None else _access.token
    return _url and login_address(_url, token if is_on_terminal() else None)


def linger() -> None:
    """Wait a few seconds, before the process may end, until clients have read the results of their operations."""
    if _operations is not None:
        _operations.linger(_LINGER_SECONDS)


def _start(configuration: Configuration) -> str | None:
    import uvicorn  # they take a third of a second, which commands and programs without REST need not spend

    from headrace.rest.app import make_app
    from headrace.rest.connections import BACKLOG, IDLE_SECONDS, Connection, Listener

    address, is_loopback = _address(configuration)
    token = _token(configuration, address, is_loopback)
    tls = _tls(configuration)
    listener = _listen(address, configuration.get(config.REST_PORT))
    if listener is None:
        return None
    port, host = listener.getsockname()[1], _host(address)
    hosts = [*_LOOPBACK, host] if is_loopback else ["*"]
    seconds = configuration.get(config.REST_STORE_DURATION) / 1000
    app = make_app(_jobs, hosts, token, seconds, secure=tls is not None)
    global _access, _operations  # noqa: PLW0603 - one server for each process
    _access = _Access(address, token, tls)
    _operations = app.state.operations
    atexit.register(linger)
    certificate, key = tls or (None, None)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_SECONDS,
            log_level="error",
            access_log=False,
            lifespan="off",
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
    )
    # The protocol is named, else the event loop does not switch off Nagle's algorithm, and answers take 40 ms longer.
    counting = Listener(listener.family, listener.type, socket.IPPROTO_TCP, fileno=listener.detach())
    threading.Thread(target=server.run, args=([counting],), name="headrace-rest", daemon=True).start()
    url = f"{'https' if tls else 'http'}://{host}:{port}"
    announce(url, token, certificate)
    return url


def _check_access(configuration: Configuration, running: _Access) -> None:
    """Refuse a job that sets what the running server does not have; what the job leaves open is taken as it is."""
    token, tls = _given_token(configuration), _tls(configuration)
    token_option = config.REST_TOKEN if configuration.get(config.REST_TOKEN) else config.REST_TOKEN_FILE
    differs = {
        config.REST_ADDRESS.key: _address(configuration)[0] != running.address,
        config.REST_AUTHENTICATION.key: configuration.get(config.REST_AUTHENTICATION) and running.token is None,
        token_option.key: token != running.token,
        config.REST_CERTIFICATE.key: tls != running.tls,
    }
    options = " and ".join(key for key in differs if differs[key] and configuration.origin(key) is not Origin.DEFAULT)
    if options:
        raise ConfigError(
            "HR-7011",
            f"{options}: an earlier job of this process has started REST with another value; give all its jobs the same "
            f"value, run this job in a process of its own, or set {config.REST_ENABLED.key}=false for it",
        )


def _address(configuration: Configuration) -> tuple[str, bool]:
    """Return the address to listen on in its canonical spelling, and True if it is loopback."""
    given = configuration.get(config.REST_ADDRESS).strip("[]")
    try:
        address = ipaddress.ip_address("127.0.0.1" if given == "localhost" else given)
    except ValueError:
        return given, False  # a name
    return str(address), address.is_loopback


def _host(address: str) -> str:
    """Return the host in the URL that is announced on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - all addresses include loopback
    return f"[{host}]" if ":" in host else host


def _token(configuration: Configuration, address: str, is_loopback: bool) -> str | None:
    """Return the token that requests must carry: the user's, or on loopback one made for this process."""
    token = _given_token(configuration) or os.environ.get(TOKEN_VARIABLE)
    if token and not is_token(token):
        raise ConfigError("HR-7011", TOKEN_RULE)
    if not is_loopback and not token:
        raise ConfigError(
            "HR-7011",
            f"rest.address is {address}, which others can reach: give a secret that requests must carry, in "
            f"{config.REST_TOKEN_FILE.key} or the environment variable {TOKEN_VARIABLE}, or leave rest.address at 127.0.0.1",
        )
    if not token and configuration.get(config.REST_AUTHENTICATION):
        return secrets.token_urlsafe(32)
    return token or None


def _given_token(configuration: Configuration) -> str | None:
    """Return the token in the options, if they have one."""
    token = configuration.get(config.REST_TOKEN)
    file = configuration.get(config.REST_TOKEN_FILE)
    if token and file:
        raise ConfigError(
            "HR-7011", f"both {config.REST_TOKEN.key} and {config.REST_TOKEN_FILE.key} are set: leave one out"
        )
    if file is not None:
        token = _private_text(file, config.REST_TOKEN_FILE.key).strip()
        if not token:
            raise ConfigError("HR-7011", f"{config.REST_TOKEN_FILE.key}: '{file}' is empty; write the token into it")
    return token or None


def _tls(configuration: Configuration) -> tuple[str, str] | None:
    """Return the files of certificate and key, after a look whether they are of use; None without TLS."""
    certificate, key = configuration.get(config.REST_CERTIFICATE), configuration.get(config.REST_KEY)
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("HR-7011", f"TLS for REST needs both {config.REST_CERTIFICATE.key} and {config.REST_KEY.key}")
    _private_text(key, config.REST_KEY.key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "HR-7011",
            f"{config.REST_CERTIFICATE.key} '{certificate}' and {config.REST_KEY.key} '{key}' are no certificate and key in "
            f"PEM form that belong together: {error}",
        ) from None
    return str(Path(certificate).resolve()), str(Path(key).resolve())


def _no_password() -> str:
    """Without it OpenSSL would ask for one on the terminal."""
    raise ValueError("the key is encrypted; decrypt it")


def _private_text(path: str, option: str) -> str:
    """Return the content of a file that only its owner can read; ConfigError otherwise."""
    try:
        mode = Path(path).stat().st_mode
        if not stat.S_ISREG(mode) or mode & 0o077:
            raise ConfigError(
                "HR-7011",
                f"{option}: '{path}' is open to other users or no file (mode {stat.filemode(mode)}); run: chmod 600 {path}",
            )
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("HR-7011", f"{option}: cannot read '{path}': {error}") from None


def _listen(address: str, first: int) -> socket.socket | None:
    """Listen on the first free port; without one the job runs without REST. ConfigError if the address is wrong."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
        family, _, _, _, (host, _, *scope) = min(found, key=lambda one: one[0])  # IPv4 before IPv6, for names
        with socket.socket(family) as probe:
            probe.bind((host, 0, *scope))
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            "HR-7011",
            f"rest.address is '{address}', which REST cannot listen on: {error}; give an address of this machine",
        ) from None
    reason: OSError | str = "ports end at 65535"
    for port in [0] if first == 0 else range(first, min(first + _PORTS, 1 << 16)):
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port, *scope))
            listener.listen(128)
        except OSError as error:
            listener.close()
            reason = error
            continue
        return listener
    _LOG.warning("REST cannot listen on %s from port %d on: %s; the job runs without REST", address, first, reason)
    return None
