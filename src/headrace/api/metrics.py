"""Metrics of a user's function: `runtime_context.get_metrics_group().counter("seen").inc()`.

They live in the subtask, which sends their values to the driver once a second, with its own counters.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup", "MetricReader"]

_LOG = logging.getLogger(__name__)
_MOST = 1000  # metrics of an operator in a subtask: all are sent once a second, and kept by the driver


class Metric(Protocol):
    """Something that is measured."""

    def values(self) -> dict[str, float]:
        """Return the measured values by the suffix of their names; "" is the metric itself."""


M = TypeVar("M", bound=Metric)


class Counter:
    """A number that functions count up and down."""

    def __init__(self) -> None:
        self._count = 0

    def inc(self, n: int = 1) -> None:
        self._count += n

    def dec(self, n: int = 1) -> None:
        self._count -= n

    def get_count(self) -> int:
        return self._count

    def values(self) -> dict[str, float]:
        return {"": self._count}


class Meter:
    """Events per second over the last `span` seconds, and how many there were."""

    def __init__(self, span: int, now: Callable[[], int]) -> None:
        self._span_ms, self._now = span * 1000, now
        self._count = 0
        self._seconds: deque[tuple[int, int]] = deque()  # time of a second's first event, count before it

    def mark_event(self, value: int = 1) -> None:
        now = self._now()
        if not self._seconds or now - self._seconds[-1][0] >= 1000:
            self._seconds.append((now, self._count))
        self._count += value

    def get_count(self) -> int:
        return self._count

    def values(self) -> dict[str, float]:
        oldest = self._now() - self._span_ms
        before = self._count
        for at, count in self._seconds.copy():
            if at >= oldest:
                before = count
                break
        while len(self._seconds) > 1 and self._seconds[0][0] < oldest:
            self._seconds.popleft()
        return {"": (self._count - before) / (self._span_ms / 1000), ".count": self._count}


class Distribution:
    """A metric of the number of values, their sum, the least and the greatest."""

    def __init__(self) -> None:
        self._count, self._sum = 0, 0
        self._min: int | None = None
        self._max: int | None = None

    def update(self, value: int) -> None:
        self._count += 1
        self._sum += value
        self._min = value if self._min is None else min(self._min, value)
        self._max = value if self._max is None else max(self._max, value)

    def values(self) -> dict[str, float]:
        if self._min is None or self._max is None:
            return {".count": 0}
        return {
            ".count": self._count,
            ".sum": self._sum,
            ".min": self._min,
            ".max": self._max,
            ".mean": self._sum / self._count,
        }


class _Gauge:
    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read

    def values(self) -> dict[str, float]:
        return {"": self._read()}


class MetricReader:
    """Reads the metrics of a subtask, in the thread that sends them.

    >>> MetricReader().read({"seen": _Gauge(lambda: True), "name": _Gauge(lambda: "x")})
    {'seen': 1.0}
    """

    def __init__(self) -> None:
        self._unreadable: set[str] = set()
        self._too_many = False

    def read(self, metrics: Mapping[str, Metric]) -> dict[str, float]:
        """The values of these metrics as plain numbers; what is none is left out.

        A metric that cannot be read is left out too, and reported once: it is the user's code, and must not end the job.
        """
        found: dict[str, float] = {}
        registered = list(metrics.items())
        if len(registered) > _MOST and not self._too_many:
            self._too_many = True
            _LOG.warning(
                "an operator has %d metrics, such as '%s', of which %d are shown: use a metric for a kind of thing, and keyed "
                "state for each thing",
                len(registered),
                registered[-1][0],
                _MOST,
            )
        for name, metric in registered[:_MOST]:
            try:
                numbers = {name + suffix: _number(value) for suffix, value in metric.values().items()}
            except Exception as error:
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    _LOG.warning("metric '%s' cannot be read: %s: %s", name, type(error).__name__, error)
                continue
            found |= {full: number for full, number in numbers.items() if number is not None}
        return found


def _number(value: object) -> float | None:
    """A number as it travels; those of NumPy, Decimal and bool are not."""
    try:
        return None if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


class MetricGroup:
    """Registers metrics under a name, and groups of them.

    >>> metrics: dict[str, Metric] = {}
    >>> MetricGroup("count", metrics, lambda: 0).add_group("shop", "basel").counter("seen").inc(2)
    >>> {name: metric.values() for name, metric in metrics.items()}
    {'count.shop.basel.seen': {'': 2}}
    """

    def __init__(self, scope: str, metrics: dict[str, Metric], now: Callable[[], int]) -> None:
        self._scope, self._metrics, self._now = scope, metrics, now

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """A group inside this one; with `extra`, a pair of a key and a value."""
        scope = f"{self._scope}.{name}" if extra is None else f"{self._scope}.{name}.{extra}"
        return MetricGroup(scope, self._metrics, self._now)

    def counter(self, name: str) -> Counter:
        return self._register(name, Counter())

    def gauge(self, name: str, obj: Callable[[], float]) -> None:
        """Ask the callable for the value when it is sent; that happens in another thread."""
        self._register(name, _Gauge(obj))

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        return self._register(name, Meter(time_span_in_seconds, self._now))

    def distribution(self, name: str) -> Distribution:
        return self._register(name, Distribution())

    def _register(self, name: str, metric: M) -> M:
        self._metrics[f"{self._scope}.{name}"] = metric
        return metric
