"""Every error that Headrace raises.

HeadraceError
├── InvalidArgument(ValueError)    a value the user gave is wrong
├── IllegalState(RuntimeError)     the call is right, but not now
├── ConfigError                    an option has a wrong value, or the environment cannot run the job
│   └── NotEnoughSlots             the Spark session has fewer task slots than the job needs
├── GraphError                     the program does not form a job
├── UserCodeError                  the user's function failed; leads with the user's own line
├── JobFailed                      the job ended in FAILED; carries the cause
├── JobCancelled                   the job was cancelled before it had finished
├── WorkerLost                     a worker, an executor or its connection died
├── StateMigrationError            stored state cannot be read with the new types
└── StorageError(OSError)          reading or writing durable files failed

A message says what happened, where, and what to do, behind a code: `[HR-1203] map_batches() needs a typed stream: ...`.
`codes.py` has a page for each code. Messages are under test.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

__all__ = [
    "ConfigError",
    "GraphError",
    "HeadraceError",
    "IllegalState",
    "InvalidArgument",
    "JobCancelled",
    "JobFailed",
    "NotEnoughSlots",
    "StateMigrationError",
    "StorageError",
    "UserCodeError",
    "WorkerLost",
]


_CODE: Final = re.compile(r"HR-\d{4}")
_CODED: Final = re.compile(r"\[(HR-\d{4})\] ")


class HeadraceError(Exception):
    """Base of all errors of this package, made of a code and a text: `GraphError("HR-1214", "the program is empty: ...")`.

    The code is part of the message, so it reaches every place that shows it, and pickling keeps it. An error of a class
    with one meaning has the code of its class; text that has a code already keeps it.

    >>> str(JobCancelled("job 'orders' was cancelled"))
    "[HR-6002] job 'orders' was cancelled"
    >>> error = InvalidArgument("HR-1401", "'soon' is not a duration")
    >>> error.code, error.text
    ('HR-1401', "'soon' is not a duration")
    """

    class_code: ClassVar[str | None] = None

    def __init__(self, *code_and_text: str) -> None:
        *code, text = code_and_text or ("",)
        if code and not _CODE.fullmatch(code[0]):
            raise TypeError(f"{type(self).__name__} takes a code and a text, got {code_and_text!r}")
        known = code[0] if code else None if _CODED.match(text) else self.class_code
        super().__init__(text if known is None else f"[{known}] {text.replace(f'[{known}] ', '')}")

    @property
    def code(self) -> str | None:
        """The code of the page that explains the error."""
        found = _CODED.match(self._message)
        return None if found is None else found[1]

    @property
    def text(self) -> str:
        """The message without its code."""
        return self._message if (found := _CODED.match(self._message)) is None else self._message[found.end() :]

    @property
    def _message(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidArgument(HeadraceError, ValueError):
    """A value the user gave is wrong (SPEC: NullPointer, IllegalArgument)."""


class IllegalState(HeadraceError, RuntimeError):
    """The call is right, but not in this state (SPEC: IllegalState)."""

    class_code = "HR-9001"


class ConfigError(HeadraceError):
    """An option has a wrong value, or the environment cannot run the job."""


class NotEnoughSlots(ConfigError):
    """The Spark session has fewer task slots than the job needs."""

    class_code = "HR-1105"


class GraphError(HeadraceError):
    """The program does not form a job: the message names the operator and the line that made it."""


class UserCodeError(HeadraceError):
    """The user's function failed; the message leads with the user's own line."""

    class_code = "HR-5001"


class JobFailed(HeadraceError):
    """The job ended in FAILED; `__cause__` is the first error that was reported."""

    class_code = "HR-6001"


class JobCancelled(HeadraceError):
    """The job was cancelled before it had finished."""

    class_code = "HR-6002"


class WorkerLost(HeadraceError):
    """A worker, an executor or its connection died."""

    class_code = "HR-6003"


class StateMigrationError(HeadraceError):
    """Stored state cannot be read with the types the program now declares."""


class StorageError(HeadraceError, OSError):
    """Reading or writing durable files failed."""

    class_code = "HR-3103"


class LocalStateError(StorageError):
    """The working files of a state backend cannot be used any more: the task must begin anew from a checkpoint."""

    class_code = "HR-2201"


def install_hint(extra: str) -> str:
    """Return the command that adds an extra to this installation.

    It names the checkout or the wheel that Headrace was installed from. Where there is none, it names the packages of the
    extra. It never names the distribution of Headrace alone, which pip would look for in an index.
    """
    try:
        installed = importlib.metadata.distribution("headrace")
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
        needed = [line for line in installed.requires or () if re.search(rf"extra == .{re.escape(extra)}\b", line)]
    except importlib.metadata.PackageNotFoundError:
        return f"install the packages of the extra '{extra}' in Headrace's pyproject.toml"
    url = origin.get("url", "")
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return f"pip install 'headrace[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}'"
    path = url2pathname(urlsplit(url).path)
    if url.startswith("file:") and Path(path).exists():
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}'{path}[{extra}]'"
    packages = [line.partition(";")[0].strip() for line in needed]
    return " ".join(["pip install", *(shlex.quote(one) for one in packages)])
