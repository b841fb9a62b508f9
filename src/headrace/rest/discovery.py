"""Discovery files, by which a user's commands find the REST servers of their drivers on this machine, with tokens.

A driver writes `<pid>.json` to a directory that only its user can read. Driver and command line run this.
"""

from __future__ import annotations

import atexit
import logging
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from headrace.storage.local import private_directory

_LOG = logging.getLogger(__name__)
TOKEN_VARIABLE = "HEADRACE_REST_TOKEN"  # noqa: S105 - the variable's name
LOG_VARIABLE = "HEADRACE_LOG_FILE"  # set for a detached driver
TOKEN_RULE = "the token for REST may have printable ASCII characters without spaces only"  # noqa: S105 - not a token


class Server(msgspec.Struct, frozen=True):
    """A driver's REST server.

    `certificate` is the path of what it shows to clients, if it speaks TLS; `log` that of its log, if it was detached.
    """

    pid: int
    url: str
    token: str | None = None
    certificate: str | None = None
    log: str | None = None


def login_address(url: str, token: str | None) -> str:
    """Return the address to open in a browser.

    >>> login_address("http://127.0.0.1:8081", "s3cret")
    'http://127.0.0.1:8081/login?token=s3cret'
    """
    return f"{url}/ui/" if token is None else f"{url}/login?token={quote(token, safe='')}"


def is_token(text: str) -> bool:
    """Return True if an HTTP header can carry the text."""
    return text.isascii() and text.isprintable() and " " not in text


def directory() -> Path:
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"


def announce(url: str, token: str | None = None, certificate: str | None = None) -> None:
    """Let the command line of this user find the server, until this process ends."""
    path = directory() / f"{os.getpid()}.json"
    server = Server(os.getpid(), url, token, certificate, os.environ.get(LOG_VARIABLE))
    try:
        private_directory(path.parent)
        path.unlink(missing_ok=True)  # of a dead process with the same number
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(server))
        atexit.register(lambda: path.unlink(missing_ok=True))
    except OSError as error:
        _LOG.warning("the command line does not find %s by itself, name it with --url: %s", url, error)


def known_servers() -> list[Server]:
    """Return the servers of this user's drivers on this machine; files of dead ones are deleted."""
    found = []
    with suppress(OSError):
        of_directory = directory().lstat()
        if not stat.S_ISDIR(of_directory.st_mode) or of_directory.st_uid != os.getuid():
            return []
        for path in sorted(directory().glob("*.json")):
            with suppress(OSError, msgspec.DecodeError):
                server = msgspec.json.decode(path.read_bytes(), type=Server)
                if Path(f"/proc/{server.pid}").exists() or not Path("/proc").exists():
                    found.append(server)
                else:
                    path.unlink()
    return found
