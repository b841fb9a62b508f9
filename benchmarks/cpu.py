"""CPU time of this process, the JVM that it started, the Python workers; and what the host takes away."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_seen: dict[tuple[int, float], tuple[str, float]] = {}  # process id and start -> part, CPU seconds when last looked at


def cpu_seconds() -> dict[str, float]:
    """CPU seconds so far of the driver, the JVM and the workers, also of those that were seen and have ended."""
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            times, name, started = process.cpu_times(), process.name(), process.create_time()
        except psutil.NoSuchProcess:
            continue
        part = "driver" if process == me else "jvm" if name == "java" else "workers"
        _seen[process.pid, started] = part, times.user + times.system
    found = Counter(driver=0.0, jvm=0.0, workers=0.0)
    for part, seconds in list(_seen.values()):
        found[part] += seconds
    return dict(found)


@contextmanager
def watched(every: float = 0.2) -> Iterator[None]:
    """Look at all processes again and again, so that at most the last moments of a worker are missed."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(every):
            cpu_seconds()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def cpu_times() -> tuple[int, int]:
    """All time of this machine's cores, and what the host has taken away of it, in ticks; Linux alone tells."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0, 0
    times = [int(ticks) for ticks in stat.read_text().split(maxsplit=9)[1:9]]  # user to steal; guests are in user
    return sum(times), times[-1]


def stolen_since(before: tuple[int, int]) -> float:
    """The share of CPU time that the host has taken away since `before`, which is from `cpu_times`."""
    all_time, stolen = (after - at for after, at in zip(cpu_times(), before, strict=True))
    return stolen / max(1, all_time)
