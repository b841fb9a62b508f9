"""The rate of each query of Nexmark on local Spark, at parallelism 2.

    python benchmarks/nexmark.py [EVENTS] [QUERY ...]

The programs are those of `examples/nexmark.py`. A query runs twice, and the second run counts: the first one starts workers.
Prints one JSON line for each query.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from headrace import StreamExecutionEnvironment

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import nexmark


def nothing(value: Any) -> None:
    """A sink that takes everything."""


def seconds(name: str, events: int) -> float:
    """How long a query takes."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    nexmark.QUERIES[name](nexmark.Events(env, events)).add_sink(nothing)
    started = time.perf_counter()
    env.execute(f"nexmark {name}")
    return time.perf_counter() - started


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for name in sys.argv[2:] or nexmark.QUERIES:
        seconds(name, events // 20)
        took = seconds(name, events)
        figure = {"query": name, "events": events, "seconds": round(took, 2), "events_per_second": round(events / took)}
        print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
