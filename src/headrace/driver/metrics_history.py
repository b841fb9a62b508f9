"""The counters that workers send once a second, kept for some seconds so that rates can be told.

The job's thread adds them; other threads read copies.
"""

from __future__ import annotations

from collections import deque

import msgspec

from headrace.control.messages import Metrics
from headrace.job.job_events import Worker

_KEPT = 6  # a rate is over about five seconds


class Rates(msgspec.Struct, frozen=True):
    """Changes per second; of the three times in milliseconds, which are at most 1,000 together."""

    records_in: float = 0.0
    records_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    busy_ms: float = 0.0
    back_pressured_ms: float = 0.0
    idle_ms: float = 0.0


class SubtaskMeasures(msgspec.Struct, frozen=True):
    """The newest counters of a subtask, and their rates."""

    metrics: Metrics
    rates: Rates = Rates()


class MetricsHistory:
    """The last counters of every worker of the attempt.

    >>> history = MetricsHistory()
    >>> history.add((0, 0), 1000, Metrics(records_in=10))
    >>> history.add((0, 0), 3000, Metrics(records_in=50))
    >>> history.measures()[0, 0].rates.records_in
    20.0
    """

    def __init__(self) -> None:
        self._seen: dict[Worker, deque[tuple[int, Metrics]]] = {}
        self._measures: dict[Worker, SubtaskMeasures] = {}  # of those that were asked for since their last counters

    def add(self, worker: Worker, now: int, metrics: Metrics) -> None:
        seen = self._seen.get(worker)
        if seen is None:
            self._seen[worker] = deque([(now, metrics)], _KEPT)  # other threads never see it empty
        else:
            seen.append((now, metrics))
        self._measures.pop(worker, None)

    def clear(self) -> None:
        """Another attempt begins: its counters start at zero."""
        self._seen, self._measures = {}, {}

    def newest(self) -> dict[Worker, Metrics]:
        return {worker: seen[-1][1] for worker, seen in list(self._seen.items())}

    def measures(self) -> dict[Worker, SubtaskMeasures]:
        known, found = self._measures, {}
        for worker, seen in list(self._seen.items()):
            measures = known.get(worker)
            if measures is None:
                measures = known[worker] = _measures(list(seen))
            found[worker] = measures
        return found


def _measures(seen: list[tuple[int, Metrics]]) -> SubtaskMeasures:
    (began, first), (ended, last) = seen[0], seen[-1]
    seconds = (ended - began) / 1000
    if seconds <= 0:
        return SubtaskMeasures(last)
    names = Rates.__struct_fields__
    return SubtaskMeasures(last, Rates(*(max(0.0, (getattr(last, n) - getattr(first, n)) / seconds) for n in names)))
