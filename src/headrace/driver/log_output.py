"""Shows the records of the `headrace` logger on the driver's stderr, as text or as JSON lines, and remembers the newest.

Set up by `execute` and by the command line, in the driver's main thread. A program that configures logging itself gets
the records through its own handlers, and nothing is written here.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import deque
from datetime import UTC, datetime

from rich.console import Console

from headrace import config
from headrace.config import Configuration

_LOGGER = logging.getLogger("headrace")
_REMEMBERED = 2000


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if _writes_itself():
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class _Recent(logging.Handler):
    """The newest records, for `headrace logs` and the dashboard, wherever else they go."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self.lines: deque[str] = deque(maxlen=_REMEMBERED)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


_HANDLER = _StderrHandler()
_RECENT = _Recent()


def _writes_itself() -> bool:
    """Return True if the program has no handlers of its own, which would get the records."""
    return not logging.getLogger().handlers and set(_LOGGER.handlers) <= {_HANDLER, _RECENT}


def is_on_terminal() -> bool:
    """Return True if records go to a terminal, and to no handler of the program, which might write them to a file."""
    return sys.stderr.isatty() and _writes_itself()


def start_log_output(configuration: Configuration) -> None:
    """Write records of headrace.log.level and above to stderr, in headrace.log.format."""
    as_json = configuration.get(config.LOG_FORMAT) == "json"
    _HANDLER.setFormatter(_JsonFormatter() if as_json else logging.Formatter("headrace: %(message)s"))
    if _LOGGER.level in {logging.NOTSET, _HANDLER.level} and not logging.getLogger().handlers:
        _LOGGER.setLevel(configuration.get(config.LOG_LEVEL))
    _HANDLER.setLevel(configuration.get(config.LOG_LEVEL))
    _RECENT.setLevel(_HANDLER.level)
    for handler in (_HANDLER, _RECENT):
        _LOGGER.addHandler(handler)  # changes nothing the second time


def make_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A terminal, or a file, where names and errors stay the text that they are: `[/data]` is no markup, `:key:` no symbol."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def recent_log() -> str:
    """The newest records of this process, one a line."""
    return "".join(f"{line}\n" for line in list(_RECENT.lines))


def shows_progress(configuration: Configuration) -> bool:
    """Return True if stderr gets the live table of a job: not among JSON lines, nor if only warnings are wanted."""
    return configuration.get(config.LOG_FORMAT) == "text" and configuration.get(config.LOG_LEVEL) in {"DEBUG", "INFO"}
