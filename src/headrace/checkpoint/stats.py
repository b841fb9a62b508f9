"""Statistics of checkpoints: a bounded history, counts, summaries, metrics of every subtask (SPEC R10.2).

Plain data for REST, the dashboard and the live table. The coordinator writes it on the job's thread of the driver;
other threads read a `snapshot`, which does not change.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice

import msgspec

from headrace.checkpoint.plan import TaskId
from headrace.ids import OperatorId, VertexId

_PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
_WINDOW = 10_000  # values that percentiles are taken of


class CheckpointStatus(Enum):
    """Flink's names."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


# ---- summaries -------------------------------------------------------------------------------------------------------


class SummaryStatistics(msgspec.Struct, frozen=True):
    """Smallest, largest, mean and percentiles of one measurement; all 0 while there is none.

    >>> SummaryStatistics.of([1, 2, 3]).avg
    2
    """

    min: int = 0
    max: int = 0
    avg: int = 0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    p999: float = 0.0

    @classmethod
    def of(cls, values: Iterable[int]) -> SummaryStatistics:
        """The statistics of these values."""
        summary = Summary()
        for value in values:
            summary.add(value)
        return summary.statistics()


class Summary:
    """Collects one measurement; percentiles are those of the last 10,000 values.

    >>> size = Summary()
    >>> for value in (10, 20, 40):
    ...     size.add(value)
    >>> size.statistics().max, size.statistics().p50
    (40, 20.0)
    """

    def __init__(self) -> None:
        self._count = self._sum = self._min = self._max = 0
        self._recent: deque[int] = deque(maxlen=_WINDOW)

    def add(self, value: int) -> None:
        """Take a value in; negative ones mean "not known" and are left out."""
        if value < 0:
            return
        self._min = min(self._min, value) if self._count else value
        self._max = max(self._max, value)
        self._count += 1
        self._sum += value
        self._recent.append(value)

    def statistics(self) -> SummaryStatistics:
        """Return the summary of all values so far."""
        if not self._count:
            return SummaryStatistics()
        ordered = sorted(self._recent)
        percentiles = (_percentile(ordered, percent) for percent in _PERCENTILES)
        return SummaryStatistics(self._min, self._max, self._sum // self._count, *percentiles)


def _percentile(ordered: list[int], percent: float) -> float:
    """By linear interpolation at rank p (n + 1), as Flink's histogram does it."""
    position = percent / 100 * (len(ordered) + 1)
    below = int(position)
    if below < 1:
        return float(ordered[0])
    if below >= len(ordered):
        return float(ordered[-1])
    low, high = ordered[below - 1], ordered[below]
    return low + (position - below) * (high - low)


# ---- one checkpoint ------------------------------------------------------------------------------------------------


class SubtaskMetrics(msgspec.Struct, frozen=True):
    """The measurements of a subtask. Sizes are bytes, times milliseconds; -1: not known.

    `checkpointed_size` is what this checkpoint wrote, `state_size` includes the files of older ones that it uses again.
    """

    checkpointed_size: int = 0
    state_size: int = 0
    sync_ms: int = 0
    async_ms: int = 0
    alignment_ms: int = 0
    start_delay_ms: int = 0
    processed_bytes: int = 0
    persisted_bytes: int = 0
    unaligned: bool = False
    objects_written: int = 0
    sync_started: int = -1  # ms since the epoch, by the clock of the worker's host
    written: int = -1  # as above: when everything was durable


_NOT_SUMMARISED = {"unaligned", "objects_written", "sync_started", "written"}


class SubtaskStats(msgspec.Struct, frozen=True):
    """One subtask's part; not `completed` if it reported after the checkpoint had failed."""

    ack_timestamp: int
    metrics: SubtaskMetrics = SubtaskMetrics()
    completed: bool = True


@dataclass(slots=True)
class VertexStats:
    """The subtasks of a vertex; `operators` are those that it had, since a rescale may chain them in another way."""

    parallelism: int
    subtasks: dict[int, SubtaskStats] = field(default_factory=dict)
    operators: tuple[OperatorId, ...] = ()

    def summary(self, trigger_timestamp: int) -> dict[str, SummaryStatistics]:
        """Every measurement over the subtasks, and `end_to_end_duration`."""
        done = [subtask for subtask in self.subtasks.values() if subtask.completed]
        measures = [name for name in SubtaskMetrics.__struct_fields__ if name not in _NOT_SUMMARISED]
        statistics = {name: SummaryStatistics.of(getattr(s.metrics, name) for s in done) for name in measures}
        durations = (max(0, s.ack_timestamp - trigger_timestamp) for s in done)
        return statistics | {"end_to_end_duration": SummaryStatistics.of(durations)}


class Totals(msgspec.Struct, frozen=True):
    """The measurements of a checkpoint over all its subtasks, or over those of one vertex; the names are REST's.

    `checkpointed_size` is what was written, `state_size` includes the files of older checkpoints that are used.
    """

    num_subtasks: int  # finished ones included
    num_acknowledged_subtasks: int
    latest_ack_timestamp: int  # -1: none has acknowledged
    end_to_end_duration: int  # latest acknowledgement minus trigger, never negative; -1: none has acknowledged
    checkpointed_size: int
    state_size: int
    processed_data: int
    persisted_data: int
    objects_written: int
    unaligned: bool  # the barrier overtook data in one of the subtasks

    @classmethod
    def of(cls, vertices: Collection[VertexStats], trigger_timestamp: int, objects: int = 0) -> Totals:
        """The totals of some vertices; `objects` are files that no subtask wrote."""
        reported = [subtask for vertex in vertices for subtask in vertex.subtasks.values()]
        acknowledged = [subtask.ack_timestamp for subtask in reported if subtask.completed]
        latest = max(acknowledged, default=-1)

        def total(measure: str) -> int:
            return sum(max(0, getattr(subtask.metrics, measure)) for subtask in reported)

        return cls(
            sum(vertex.parallelism for vertex in vertices),
            len(acknowledged),
            latest,
            -1 if latest < 0 else max(0, latest - trigger_timestamp),
            total("checkpointed_size"),
            total("state_size"),
            total("processed_bytes"),
            total("persisted_bytes"),
            total("objects_written") + objects,
            any(subtask.metrics.unaligned for subtask in reported),
        )


@dataclass(slots=True, eq=False, weakref_slot=True)
class CheckpointStats:
    """The statistics of one checkpoint or savepoint. They do not change any more once there are `final_totals`."""

    id: int
    trigger_timestamp: int
    checkpoint_type: str  # CHECKPOINT, SAVEPOINT, SYNC_SAVEPOINT
    is_savepoint: bool
    savepoint_format: str | None
    trigger: str  # what made it: periodic, user, automatic, end of data
    vertices: dict[VertexId, VertexStats]
    full: bool = False
    full_reason: str | None = None  # why it writes everything anew, if it would not have to
    chain_length: int = 1  # the checkpoints that a restore needs files of, this one included
    chain_started: int | None = None  # when the oldest of them began; None if that was before this driver
    shared_files: dict[OperatorId, int] = field(default_factory=dict)  # that it uses, new or old, if there are any
    status: CheckpointStatus = CheckpointStatus.IN_PROGRESS
    metadata_size: int = -1
    metadata_objects: int = 0
    external_path: str | None = None
    commit_number: int | None = None
    completed_timestamp: int | None = None
    discarded: bool = False
    failure_timestamp: int | None = None
    failure_reason: str | None = None
    failure_message: str | None = None
    final_totals: Totals | None = None  # when it is completed: no subtask reports any more

    @property
    def totals(self) -> Totals:
        if self.final_totals is not None:
            return self.final_totals
        return Totals.of(self.vertices.values(), self.trigger_timestamp, self.metadata_objects)

    def report(self, task: TaskId, stats: SubtaskStats) -> bool:
        """Add a subtask's metrics; False if the subtask is not known or has reported before."""
        vertex = self.vertices.get(task.vertex)
        if vertex is None or task.subtask in vertex.subtasks:
            return False
        vertex.subtasks[task.subtask] = stats
        return True


class RestoredStats(msgspec.Struct, frozen=True):
    """The checkpoint that the running attempt started from."""

    id: int
    restore_timestamp: int
    is_savepoint: bool
    external_path: str
    state_size: int


# ---- all of them ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counts:
    """Counts of checkpoints by outcome; those that failed before they had an id count in total and failed."""

    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class StatsSnapshot:
    """The statistics at one moment; `history` has the newest first, `latest` the newest completed, savepoint, failed."""

    counts: Counts
    summary: Mapping[str, SummaryStatistics]
    history: tuple[CheckpointStats, ...]
    latest: Mapping[str, CheckpointStats]
    restored: RestoredStats | None

    def find(self, checkpoint_id: int) -> CheckpointStats | None:
        """The checkpoint of this id, if it is still remembered."""
        return next((s for s in (*self.history, *self.latest.values()) if s.id == checkpoint_id), None)


def _copy(stats: CheckpointStats, copies: dict[int, CheckpointStats]) -> CheckpointStats:
    """A copy that does not change; what does not change any more is not copied."""
    if stats.final_totals is not None:
        return stats
    found = copies.get(stats.id)
    if found is None:
        vertices = {id: replace(one, subtasks=dict(one.subtasks)) for id, one in stats.vertices.items()}
        found = copies[stats.id] = replace(stats, vertices=vertices, shared_files=dict(stats.shared_files))
    return found


class StatsTracker:
    """Keeps the statistics of one job."""

    _MEASURES = (
        "checkpointed_size",
        "state_size",
        "end_to_end_duration",
        "processed_data",
        "persisted_data",
        "objects_written",
    )

    def __init__(self, history_size: int) -> None:
        self._counts = Counts()
        self._summary = {measure: Summary() for measure in self._MEASURES}
        self._history: deque[CheckpointStats] = deque(maxlen=history_size)
        self._latest: dict[str, CheckpointStats] = {}
        self._newest_completed: CheckpointStats | None = None  # of either kind: the gauges of R10.3 speak of it
        self._restored: RestoredStats | None = None

    def pending(self, stats: CheckpointStats) -> None:
        """A checkpoint has begun."""
        self._counts.total += 1
        self._counts.in_progress += 1
        self._history.append(stats)

    def completed(self, stats: CheckpointStats) -> None:
        """A checkpoint has been completed; its stats say with what."""
        stats.status = CheckpointStatus.COMPLETED
        self._counts.in_progress -= 1
        self._counts.completed += 1
        self._newest_completed = stats
        totals = stats.final_totals = stats.totals
        for measure, summary in self._summary.items():
            summary.add(getattr(totals, measure))
        self._remember("savepoint" if stats.is_savepoint else "completed", stats)

    def failed(self, stats: CheckpointStats, now: int, reason: str, message: str) -> None:
        """A checkpoint has failed."""
        stats.status = CheckpointStatus.FAILED
        stats.failure_timestamp, stats.failure_reason, stats.failure_message = now, reason, message
        self._counts.in_progress -= 1
        self._counts.failed += 1
        self._remember("failed", stats)

    def _remember(self, kind: str, stats: CheckpointStats) -> None:
        self._latest[kind] = max(self._latest.get(kind, stats), stats, key=lambda s: s.id)

    def failed_before_start(self) -> None:
        """Count a checkpoint that failed before it had an id."""
        self._counts.total += 1
        self._counts.failed += 1

    def restored(self, stats: RestoredStats) -> None:
        """The job starts from a checkpoint."""
        self._counts.restored += 1
        self._restored = stats

    def late(self, checkpoint_id: int, task: TaskId, now: int, metrics: SubtaskMetrics) -> None:
        """Add the metrics of a subtask that reported after the checkpoint had failed."""
        for stats in self._history:
            if stats.id == checkpoint_id and stats.status is CheckpointStatus.FAILED:
                stats.report(task, SubtaskStats(now, metrics, completed=False))

    def discarded(self, checkpoint_id: int) -> None:
        """The files of a completed checkpoint are being deleted."""
        found = next((one for one in (*self._history, *self._latest.values()) if one.id == checkpoint_id), None)
        if found is None or found.discarded:
            return
        discarded = replace(found, discarded=True)
        for number, one in enumerate(self._history):
            if one is found:
                self._history[number] = discarded
                break
        for kind, one in self._latest.items():
            if one is found:
                self._latest[kind] = discarded
        if self._newest_completed is found:
            self._newest_completed = discarded

    def chain_started(self, checkpoint_id: int) -> int | None:
        """Return the start of the oldest checkpoint whose files a restore of this one needs."""
        remembered = (*self._history, *self._latest.values())
        return next((stats.chain_started for stats in remembered if stats.id == checkpoint_id), None)

    def snapshot(self, newest: int | None = None) -> StatsSnapshot:
        """A copy that does not change; of the history only the `newest`, if that is given.

        Checkpoints that have failed are copied too, as late reports may come.

        May be called by any thread: if something changes meanwhile, it is copied again.
        """
        while True:
            try:
                copies: dict[int, CheckpointStats] = {}  # equal parts stay one object
                history = tuple(_copy(stats, copies) for stats in islice(reversed(self._history), newest))
                latest = {kind: _copy(stats, copies) for kind, stats in self._latest.items()}
                statistics = {measure: summary.statistics() for measure, summary in self._summary.items()}
                return StatsSnapshot(copy.copy(self._counts), statistics, history, latest, self._restored)
            except RuntimeError:  # a dict or deque changed its size under the copy
                continue

    def gauges(self) -> dict[str, int | str]:
        """The metrics of the job (SPEC R10.3); -1 and "n/a" before the first completed checkpoint."""
        counts, last = self._counts, self._newest_completed
        totals = None if last is None else last.totals
        return {
            "totalNumberOfCheckpoints": counts.total,
            "numberOfInProgressCheckpoints": counts.in_progress,
            "numberOfCompletedCheckpoints": counts.completed,
            "numberOfFailedCheckpoints": counts.failed,
            "lastCheckpointDuration": totals.end_to_end_duration if totals else -1,
            "lastCheckpointSize": totals.checkpointed_size if totals else -1,
            "lastCheckpointFullSize": totals.state_size if totals else -1,
            "lastCheckpointMetadataSize": last.metadata_size if last else -1,
            "lastCheckpointProcessedData": totals.processed_data if totals else -1,
            "lastCheckpointPersistedData": totals.persisted_data if totals else -1,
            "lastCheckpointExternalPath": (last.external_path if last else None) or "n/a",
            "lastCompletedCheckpointId": last.id if last else -1,
            "lastCheckpointCompletedTimestamp": (last.completed_timestamp if last else None) or -1,
            "lastCheckpointRestoreTimestamp": self._restored.restore_timestamp if self._restored else -1,
        }
