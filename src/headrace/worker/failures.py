"""Turns an exception in a worker into a message for the user: what failed, where, and with which record."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.checkpoint.handles import CorruptState
from headrace.control.deployment import ARCHIVE_PREFIX
from headrace.control.messages import Failed
from headrace.errors import HeadraceError, JobFailed, UserCodeError, WorkerLost
from headrace.records.types import TypeMismatch

# With the separator, so that a package called headrace_plugin does not match.
_OURS = f"{Path(__file__).parent.parent}{os.sep}"
_FOREIGN = tuple(
    {f"{Path(sysconfig.get_path(name)).resolve()}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {f"{Path(p).resolve()}{os.sep}" for p in sys.path if p.endswith((".zip", "site-packages"))}
)
_ARCHIVE = re.compile(rf".*/{ARCHIVE_PREFIX}\w+\.zip/")  # modules that were sent: the path beside the script remains
NO_KEY = object()
_LONGEST = 20_000  # characters of a message or a traceback: the driver keeps those of many attempts


class OperatorFailure(Exception):
    """A user's function raised; the cause is its exception."""

    def __init__(
        self, operator: str, call_site: str, cause: BaseException, key: Any = NO_KEY, record: Any = NO_KEY
    ) -> None:
        super().__init__(operator)
        self.operator = operator
        self.call_site = call_site
        self.cause = cause
        self.key = key
        self.record = record


@contextmanager
def reported(task: str) -> Iterator[None]:
    """Raises errors of user functions with the message that a job reports, and the original error as cause."""
    try:
        yield
    except Exception as error:
        if isinstance(error, HeadraceError) and not isinstance(error, TypeMismatch):
            raise
        failure = describe(error, task)
        shown = UserCodeError(failure.message)
        shown.add_note(failure.traceback)
        raise shown from (error.cause if isinstance(error, OperatorFailure) else error)


def user_line(trace: TracebackType | None) -> str:
    """file:line of the innermost frame of the user's own code; empty if there is none."""
    found = ""
    for frame, line in traceback.walk_tb(trace):
        name = frame.f_code.co_filename
        path = str(Path(name).resolve()) if not name.startswith("<") else name
        # Frames of compiled extensions have relative names that exist nowhere, such as pyarrow/error.pxi.
        if path.startswith((_OURS, *_FOREIGN)) or name.startswith("<frozen") or name.endswith((".pyx", ".pxi")):
            continue
        found = f"{_ARCHIVE.sub('', name)}:{line}"
    return found


def describe(error: BaseException, task: str) -> Failed:
    """The message for the driver; it begins with a code and the user's line."""
    if isinstance(error, TypeMismatch) and error.origin is not None:
        operator, call_site = error.origin
        error = OperatorFailure(operator, call_site, error)
    if isinstance(error, OperatorFailure):
        return _user_failure(error)
    text = _without_code(error)
    if isinstance(error, CorruptState):
        return Failed(f"[{error.code}] {task}: {error.text}", _trace(error), operator=task, kind="damaged")
    if isinstance(error, WorkerLost):
        return Failed(f"[{error.code}] {task}: {error.text}", _trace(error), operator=task, kind="victim")
    line = user_line(error.__traceback__)
    if line:  # for example sys.exit() in a function
        message = f"[{_code(error, UserCodeError)}] {line}: {text}\n  in {task}"
        return Failed(message, _trace(error), operator=task, user_line=line, kind="user")
    return Failed(f"[{_code(error, JobFailed)}] {task} failed: {text}", _trace(error), operator=task, kind="runtime")


def _user_failure(failure: OperatorFailure) -> Failed:
    cause = failure.cause
    line = user_line(cause.__traceback__) or failure.call_site
    details = [f"operator '{failure.operator}'"]
    key = "" if failure.key is NO_KEY else short(failure.key)
    if key:
        details.append(f"key {key}")
    if failure.record is not NO_KEY:
        details.append(f"record {short(failure.record)}")
    what = _without_code(cause)
    if isinstance(cause, TypeMismatch):
        what = f"the function returned a wrong type: {cause.text}"
    elif isinstance(cause, UserCodeError):  # its text is complete
        what = _cut(cause.text)
    code = _code(cause, UserCodeError)
    message = f"[{code}] {line}: {what}\n  in {', '.join(details)}, defined at {failure.call_site}"
    return Failed(message, _trace(cause), operator=failure.operator, user_line=line, key=key, kind="user")


def _code(error: BaseException, otherwise: type[HeadraceError]) -> str | None:
    """The code of an error of ours; else the one of the class as which it is reported."""
    return (error.code if isinstance(error, HeadraceError) else None) or otherwise.class_code


def _without_code(error: BaseException) -> str:
    """Class and message of an error whose code stands elsewhere."""
    text = error_text(error)
    return text.replace(f"[{error.code}] ", "", 1) if isinstance(error, HeadraceError) else text


def error_text(error: BaseException) -> str:
    """Class and message of an error that a user may have written."""
    try:
        return _cut(f"{type(error).__name__}: {error}")
    except Exception as problem:
        return f"{type(error).__name__}, whose message cannot be shown: {problem}"


def _trace(error: BaseException) -> str:
    return _cut("".join(traceback.format_exception(error)))


def _cut(text: str) -> str:
    """A message may have a whole file in it; its beginning and its end are what a person reads."""
    half = _LONGEST // 2
    return (
        text
        if len(text) <= _LONGEST
        else f"{text[:half]}\n... {len(text) - 2 * half:,} characters cut ...\n{text[-half:]}"
    )


def short(value: Any, longest: int = 200) -> str:
    """The repr of a value, cut where it is long."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr fails: {error}>"
    return text if len(text) <= longest else text[: longest - 3] + "..."
