"""Kills workers at chosen points of a sink's commits, on a real cluster, to test that output stays exactly-once.

    points = KillPoints(directory)
    stream.sink_to(KillingSink(sink, points))
    points.arm("before-commit")      # the next subtask that is about to commit gets SIGKILL

`before-commit`: the checkpoint is complete and the subtask was notified. `after-commit`: its commit is done, and no later
checkpoint is complete. If a sink commits on the driver, one of its workers is killed at these points.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.api.sink import Committer, EpochCommitter, EpochContext, Sink, SinkWriter, WriterContext, sink_kind

__all__ = ["KILL_POINTS", "KillPoints", "KillingSink"]

KILL_POINTS = ("before-commit", "after-commit")


class KillPoints:
    """The points at which a worker is to be killed: files of a directory that all workers see. Each kills once.

    >>> import tempfile
    >>> points = KillPoints(tempfile.mkdtemp())
    >>> points.arm("before-commit")
    >>> points.disarm("before-commit"), points.disarm("before-commit")
    (True, False)
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        Path(directory).mkdir(parents=True, exist_ok=True)

    def arm(self, point: str) -> None:
        """Kill a worker when it reaches this point the next time."""
        (Path(self.directory) / point).touch()

    def disarm(self, point: str) -> bool:
        """Disarm the point; return True if it was armed."""
        try:
            (Path(self.directory) / point).unlink()
        except FileNotFoundError:
            return False
        return True

    def register(self, subtask: int) -> None:
        """Remember the process of a subtask, for `kill_worker`."""
        (Path(self.directory) / f"pid-{subtask}").write_text(str(os.getpid()))

    def kill_worker(self, point: str) -> None:
        """Kill the worker that registered last if the point is armed; it stays armed if that worker is gone."""
        registered = sorted(Path(self.directory).glob("pid-*"), key=lambda path: path.stat().st_mtime_ns)
        if registered and self.disarm(point):
            try:
                os.kill(int(registered[-1].read_text()), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                self.arm(point)

    def kill_self(self, point: str) -> None:
        """Kill this process if the point is armed."""
        if self.disarm(point):
            os.kill(os.getpid(), signal.SIGKILL)


class KillingSink(Sink[Any]):
    """Another sink whose workers are killed at armed points."""

    def __init__(self, sink: Sink[Any], points: KillPoints) -> None:
        self._sink, self._points = sink, points
        self.commits_on_driver, self.needs_staging = sink.commits_on_driver, sink.needs_staging
        self.output_kind = sink_kind(sink)

    def check(self, stream_type: Any) -> None:
        self._sink.check(stream_type)

    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[Any]:
        self._points.register(context.subtask)
        return self._sink.writer(context, restored)

    def committer(self, context: WriterContext) -> Committer[Any] | None:
        committer = self._sink.committer(context)
        return None if committer is None else _KillingCommitter(committer, self._points.kill_self)

    def epoch_committer(self, context: EpochContext) -> EpochCommitter[Any]:
        return _KillingCommitter(self._sink.epoch_committer(context), self._points.kill_worker)


class _KillingCommitter(Committer[Any], EpochCommitter[Any]):
    def __init__(self, committer: Committer[Any] | EpochCommitter[Any], kill: Callable[[str], None]) -> None:
        self._committer, self._kill = committer, kill

    def commit(self, work: Any) -> None:
        """Commit an epoch, or the requests of a subtask, which may be none."""
        if work:
            self._kill("before-commit")
        self._committer.commit(work)
        if work:
            self._kill("after-commit")

    def close(self) -> None:
        self._committer.close()
