"""Statistics of checkpoints: a bounded history, counts, summaries, metrics of every subtask (SPEC R10.2).

Plain data for REST, the dashboard and the live table. The coordinator writes it on the job's thread of the driver;
other threads read a `snapshot`, which does not change.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from headgate.checkpoint.plan import TaskId
from headgate.ids import VertexId

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}
_WINDOW = 10_000  # values that percentiles are taken of


class CheckpointStatus(Enum):
    """Flink's names."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


# ---- summaries -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SummaryStatistics:
    """Smallest, largest, mean and percentiles of one measurement; all 0 while there is none.

    >>> SummaryStatistics.of([1, 2, 3]).avg
    2
    """

    count: int = 0
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
        """What came in so far."""
        if not self._count:
            return SummaryStatistics()
        ordered = sorted(self._recent)
        percentiles = {name: _percentile(ordered, percent) for name, percent in PERCENTILES.items()}
        return SummaryStatistics(self._count, self._min, self._max, self._sum // self._count, **percentiles)


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


@dataclass(frozen=True, slots=True)
class SubtaskStats:
    """One subtask's part; not `completed` if it reported after the checkpoint had failed."""

    index: int
    ack_timestamp: int
    metrics: SubtaskMetrics
    completed: bool = True


@dataclass(slots=True)
class VertexStats:
    """The subtasks of a vertex."""

    vertex: VertexId
    parallelism: int
    subtasks: dict[int, SubtaskStats] = field(default_factory=dict)

    @property
    def acknowledged(self) -> int:
        return sum(1 for subtask in self.subtasks.values() if subtask.completed)

    @property
    def latest_ack_timestamp(self) -> int:
        """When the last one did; -1 if none has."""
        return max((s.ack_timestamp for s in self.subtasks.values() if s.completed), default=-1)

    def total(self, measure: str) -> int:
        """The sum of one measurement over the subtasks."""
        return sum(max(0, getattr(subtask.metrics, measure)) for subtask in self.subtasks.values())

    def summary(self, trigger_timestamp: int) -> dict[str, SummaryStatistics]:
        """Every measurement over the subtasks, and `end_to_end_duration`."""
        done = [subtask for subtask in self.subtasks.values() if subtask.completed]
        measures = [name for name in SubtaskMetrics.__struct_fields__ if name not in {"unaligned", "objects_written"}]
        statistics = {name: SummaryStatistics.of(getattr(s.metrics, name) for s in done) for name in measures}
        durations = (max(0, s.ack_timestamp - trigger_timestamp) for s in done)
        return statistics | {"end_to_end_duration": SummaryStatistics.of(durations)}


@dataclass(slots=True)
class CheckpointStats:
    """The statistics of one checkpoint or savepoint."""

    id: int
    trigger_timestamp: int
    checkpoint_type: str  # CHECKPOINT, SAVEPOINT, SYNC_SAVEPOINT; `unaligned` marks an unaligned one
    is_savepoint: bool
    savepoint_format: str | None
    trigger: str  # what made it: periodic, user, automatic, end of data
    vertices: dict[VertexId, VertexStats]
    full: bool = False
    full_reason: str | None = None  # why it writes everything anew, if it would not have to
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

    @property
    def num_subtasks(self) -> int:
        """Subtasks that take part, finished ones included."""
        return sum(vertex.parallelism for vertex in self.vertices.values())

    @property
    def num_acknowledged_subtasks(self) -> int:
        return sum(vertex.acknowledged for vertex in self.vertices.values())

    @property
    def latest_ack_timestamp(self) -> int:
        """When the last subtask acknowledged; -1 if none has."""
        return max((vertex.latest_ack_timestamp for vertex in self.vertices.values()), default=-1)

    @property
    def end_to_end_duration(self) -> int:
        """Latest acknowledgement minus trigger, never negative; -1 if none has acknowledged."""
        latest = self.latest_ack_timestamp
        return -1 if latest < 0 else max(0, latest - self.trigger_timestamp)

    @property
    def checkpointed_size(self) -> int:
        """Bytes that this checkpoint wrote."""
        return self._total("checkpointed_size")

    @property
    def state_size(self) -> int:
        """Bytes including those of older files that it uses."""
        return self._total("state_size")

    @property
    def processed_data(self) -> int:
        """Bytes processed during alignment."""
        return self._total("processed_bytes")

    @property
    def persisted_data(self) -> int:
        """Bytes of in-flight data stored."""
        return self._total("persisted_bytes")

    @property
    def objects_written(self) -> int:
        """Files written, the metadata included."""
        return self._total("objects_written") + self.metadata_objects

    @property
    def unaligned(self) -> bool:
        """Whether the barrier overtook data in any subtask."""
        return any(s.metrics.unaligned for vertex in self.vertices.values() for s in vertex.subtasks.values())

    def report(self, task: TaskId, stats: SubtaskStats) -> bool:
        """Add a subtask's metrics; False if the subtask is not known or has reported before."""
        vertex = self.vertices.get(task.vertex)
        if vertex is None or task.subtask in vertex.subtasks:
            return False
        vertex.subtasks[task.subtask] = stats
        return True

    def _total(self, measure: str) -> int:
        return sum(vertex.total(measure) for vertex in self.vertices.values())


@dataclass(frozen=True, slots=True)
class RestoredStats:
    """The checkpoint that the running attempt started from."""

    checkpoint_id: int
    timestamp: int
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
    """The statistics at one moment; `history` has the newest first."""

    counts: Counts
    summary: Mapping[str, SummaryStatistics]
    history: tuple[CheckpointStats, ...]
    latest_completed: CheckpointStats | None
    latest_savepoint: CheckpointStats | None
    latest_failed: CheckpointStats | None
    restored: RestoredStats | None

    def find(self, checkpoint_id: int) -> CheckpointStats | None:
        """The checkpoint of this id, if it is still remembered."""
        latest = (self.latest_completed, self.latest_savepoint, self.latest_failed)
        return next((s for s in (*self.history, *latest) if s is not None and s.id == checkpoint_id), None)


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
        self._latest_completed: CheckpointStats | None = None
        self._latest_savepoint: CheckpointStats | None = None
        self._latest_failed: CheckpointStats | None = None
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
        for measure, summary in self._summary.items():
            summary.add(getattr(stats, measure))
        if stats.is_savepoint:
            self._latest_savepoint = _newer(self._latest_savepoint, stats)
        else:
            self._latest_completed = _newer(self._latest_completed, stats)

    def failed(self, stats: CheckpointStats, now: int, reason: str, message: str) -> None:
        """A checkpoint has failed."""
        stats.status = CheckpointStatus.FAILED
        stats.failure_timestamp, stats.failure_reason, stats.failure_message = now, reason, message
        self._counts.in_progress -= 1
        self._counts.failed += 1
        self._latest_failed = _newer(self._latest_failed, stats)

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
                stats.report(task, SubtaskStats(task.subtask, now, metrics, completed=False))

    def discarded(self, checkpoint_id: int) -> None:
        """The files of a completed checkpoint are being deleted."""
        for stats in (*self._history, self._latest_completed):
            if stats is not None and stats.id == checkpoint_id:
                stats.discarded = True

    def snapshot(self) -> StatsSnapshot:
        """A copy that does not change; checkpoints that have ended are copied too, as late reports may come.

        May be called by any thread: if something changes meanwhile, it is copied again.
        """
        while True:
            try:
                history, completed, savepoint, failed = self._copy()
                break
            except RuntimeError:  # a dict or deque changed its size under the copy
                continue
        statistics = {measure: summary.statistics() for measure, summary in self._summary.items()}
        return StatsSnapshot(copy.copy(self._counts), statistics, history, completed, savepoint, failed, self._restored)

    def _copy(
        self,
    ) -> tuple[tuple[CheckpointStats, ...], CheckpointStats | None, CheckpointStats | None, CheckpointStats | None]:
        parts = (tuple(reversed(self._history)), self._latest_completed, self._latest_savepoint, self._latest_failed)
        return copy.deepcopy(parts)  # in one go: equal parts stay one object

    def gauges(self) -> dict[str, int | str]:
        """The metrics of the job (SPEC R10.3); -1 and "n/a" before the first completed checkpoint."""
        counts, last = self._counts, self._newest_completed
        return {
            "totalNumberOfCheckpoints": counts.total,
            "numberOfInProgressCheckpoints": counts.in_progress,
            "numberOfCompletedCheckpoints": counts.completed,
            "numberOfFailedCheckpoints": counts.failed,
            "lastCheckpointDuration": last.end_to_end_duration if last else -1,
            "lastCheckpointSize": last.checkpointed_size if last else -1,
            "lastCheckpointFullSize": last.state_size if last else -1,
            "lastCheckpointMetadataSize": last.metadata_size if last else -1,
            "lastCheckpointProcessedData": last.processed_data if last else -1,
            "lastCheckpointPersistedData": last.persisted_data if last else -1,
            "lastCheckpointExternalPath": (last.external_path if last else None) or "n/a",
            "lastCompletedCheckpointId": last.id if last else -1,
            "lastCheckpointCompletedTimestamp": (last.completed_timestamp if last else None) or -1,
            "lastCheckpointRestoreTimestamp": self._restored.timestamp if self._restored else -1,
        }


def _newer(known: CheckpointStats | None, new: CheckpointStats) -> CheckpointStats:
    return new if known is None or new.id > known.id else known
