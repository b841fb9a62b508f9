"""CPU time of this process, the JVM that it started, and the Python workers."""

import psutil


def cpu_seconds() -> dict[str, float]:
    """CPU seconds so far of the driver, the JVM and the workers; of processes that have ended too."""
    me = psutil.Process()
    found = {"driver": 0.0, "jvm": 0.0, "workers": 0.0}
    for process in [me, *me.children(recursive=True)]:
        try:
            times, name = process.cpu_times(), process.name()
        except psutil.NoSuchProcess:
            continue
        part = "driver" if process == me else "jvm" if name == "java" else "workers"
        found[part] += times.user + times.system
        if part == "workers":  # the JVM and the driver wait for children that are counted here
            found[part] += times.children_user + times.children_system
    return found
