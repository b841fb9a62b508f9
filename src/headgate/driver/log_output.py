"""Shows the records of the `headgate` logger on the driver's stderr, as text or as JSON lines.

Set up by `execute` and by the command line, in the driver's main thread. A program that configures logging itself gets
the records through its own handlers, and nothing is written here.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from headgate import config
from headgate.config import Configuration

_LOGGER = logging.getLogger("headgate")


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and _LOGGER.handlers == [self]:
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


_HANDLER = _StderrHandler()


def start_log_output(configuration: Configuration) -> None:
    """Write records of headgate.log.level and above to stderr, in headgate.log.format."""
    as_json = configuration.get(config.LOG_FORMAT) == "json"
    _HANDLER.setFormatter(_JsonFormatter() if as_json else logging.Formatter("headgate: %(message)s"))
    if _LOGGER.level in {logging.NOTSET, _HANDLER.level} and not logging.getLogger().handlers:
        _LOGGER.setLevel(configuration.get(config.LOG_LEVEL))
    _HANDLER.setLevel(configuration.get(config.LOG_LEVEL))
    _LOGGER.addHandler(_HANDLER)  # changes nothing the second time


def shows_progress(configuration: Configuration) -> bool:
    """Whether the live table of a job belongs on stderr: not among JSON lines, and not if only warnings are wanted."""
    return configuration.get(config.LOG_FORMAT) == "text" and configuration.get(config.LOG_LEVEL) in {"DEBUG", "INFO"}
