"""The table of acceptance lines, and what they share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psutil

__all__ = ["LINES", "Line", "Outcome", "line", "wait_until"]

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """Whether a line holds, and the figure that shows it."""

    ok: bool
    figure: str


@dataclass(frozen=True)
class Line:
    """One acceptance line."""

    function: Callable[[], Outcome]
    seconds: float  # after which it counts as failed


LINES: dict[str, Line] = {}


def line(name: str, seconds: float) -> Callable[[Callable[[], Outcome]], Callable[[], Outcome]]:
    """Enter a function in the table."""

    def enter(function: Callable[[], Outcome]) -> Callable[[], Outcome]:
        LINES[name] = Line(function, seconds)
        return function

    return enter


def wait_until(condition: Callable[[], T], seconds: float, what: str) -> T:
    """Poll until the condition gives something true; that."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.02)
    return found


def running_workers(job_id: str) -> list[psutil.Process]:
    """Processes that run a task of a job now, anywhere on this machine."""
    mark = f"hr-{job_id[:8]}"
    found = []
    for process in psutil.process_iter():
        try:
            if process.name().startswith(mark):
                found.append(process)
        except psutil.Error:
            continue
    return found
