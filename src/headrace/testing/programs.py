"""Runs whole programs in the local runtime, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace.api.stream import DataStream
from headrace.config import Configuration
from headrace.environment import StreamExecutionEnvironment, use_local_runtime
from headrace.errors import IllegalState, InvalidArgument
from headrace.local import LocalRun
from headrace.worker.operators.sinks import decode_collected

__all__ = ["RunResult", "local_runtime", "run"]

Program = Callable[[StreamExecutionEnvironment], "DataStream | Mapping[str, DataStream] | object"]
_ONLY = "records"


@dataclass(slots=True)
class RunResult:
    """The output of a program."""

    streams: dict[str, list[Any]] = field(default_factory=dict)
    """The records of every stream that the program returned, by name."""

    printed: list[str] = field(default_factory=list)
    """The lines of all print() sinks."""

    time: int = 0
    """The virtual clock at the end, in milliseconds."""

    snapshot: bytes | None = None
    """The state at the end if `snapshot=True`; pass it to another `run` as `restore`."""

    @property
    def records(self) -> list[Any]:
        """The records of the one stream that the program returned."""
        if list(self.streams) != [_ONLY]:
            names = ", ".join(self.streams) or "none"
            raise IllegalState(
                "HR-8501", f"the program did not return exactly one stream (it has: {names}); use result['name']"
            )
        return self.streams[_ONLY]

    def __getitem__(self, name: str) -> list[Any]:
        return self.streams[name]


def run(
    build: Program,
    *,
    parallelism: int = 1,
    seed: int | None = None,
    start_time: int = 0,
    until: int | Callable[[RunResult], bool] | None = None,
    slice_records: int = 100,
    configuration: Configuration | Mapping[str, Any] | None = None,
    snapshot: bool = False,
    restore: bytes | None = None,
) -> RunResult:
    """Build a program with `build(env)`, run it to its end, and return what it printed and collected.

    `build` returns the stream to collect, several of them as a dict, or nothing. The same arguments give the same
    records in the same order; another `seed` runs the subtasks in another order, as a cluster might. The clock starts
    at `start_time` and jumps to the next deadline when no subtask has work. `until` ends a program with unbounded
    sources: at a time (the sources need a rate, otherwise time does not advance), or when a function of the result so
    far returns true. `slice_records` is the number of records that a subtask processes before another one runs.

    >>> def ticks(env):
    ...     return {"ticks": env.from_datagen(lambda n: n, rate=10.0)}
    >>> run(ticks, until=300)["ticks"]
    [0, 1, 2, 3]

    With `snapshot` the state at the end is kept, and another run can go on from there, with another parallelism too:

    >>> first = run(ticks, until=300, snapshot=True)
    >>> run(ticks, start_time=300, until=500, restore=first.snapshot)["ticks"]
    [4, 5, 6]
    >>> len(run(ticks, until=lambda result: len(result["ticks"]) >= 50)["ticks"])
    50

    An error of the program is raised with the same message as on Spark: the user's line first.
    """
    given = configuration if isinstance(configuration, Configuration) else Configuration(dict(configuration or {}))
    env = StreamExecutionEnvironment.local(given)
    env.set_parallelism(parallelism)
    streams = _streams(build(env))
    for name, stream in streams.items():
        stream._collect_into(name)
    result = RunResult({name: [] for name in streams})

    def on_output(channel: str, payload: bytes) -> None:
        if channel in streams:
            result.streams[channel] += decode_collected(payload, streams[channel].get_type())
        else:
            result.printed += payload.decode().split("\n")

    def at_the_end() -> None:
        result.snapshot = local.snapshot() if snapshot else None

    local = LocalRun(env._job_plan(), on_output, start_time, seed, slice_records, restore)
    stop = (lambda: until(result)) if callable(until) else None
    local.run(None if callable(until) else until, stop, at_the_end)
    result.time = local.time
    return result


def _streams(returned: object) -> dict[str, DataStream]:
    if isinstance(returned, DataStream):
        return {_ONLY: returned}
    streams = dict(returned) if isinstance(returned, Mapping) else {}
    if isinstance(returned, list | tuple) or not all(isinstance(stream, DataStream) for stream in streams.values()):
        raise InvalidArgument("HR-8501", "a program returns a DataStream, a dict of name -> DataStream, or nothing")
    return streams


@contextmanager
def local_runtime(**options: Any) -> Iterator[None]:
    """Inside, `StreamExecutionEnvironment.get_execution_environment()` gives environments of the local runtime.

    So a program that makes its own environment is tested as it is. The options are those of the local runtime: `seed`,
    `start_time`, `until`, `slice_records`.

    >>> def main():
    ...     env = StreamExecutionEnvironment.get_execution_environment()
    ...     env.from_collection(["a"]).print()
    ...     env.execute()
    >>> with local_runtime(seed=7):
    ...     main()
    a
    """
    before = use_local_runtime(options)
    try:
        yield
    finally:
        use_local_runtime(before)
