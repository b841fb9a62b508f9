"""The shape of every answer of REST: the OpenAPI page shows it, and tests compare the answers with it.

Answers themselves are plain documents (`documents.py` and its neighbours), encoded once and served to all who poll: going
through these models for each request would cost the driver more than making the document.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class _Plain(BaseModel):
    """Fields are named as they are written; what is not listed is an error in our own tests."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class _Dashed(BaseModel):
    """`start_time` is `start-time`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, alias_generator=_dashed)


class _Camel(BaseModel):
    """`max_parallelism` is `maxParallelism`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, alias_generator=_camel)


Millis = Annotated[int, Field(description="Milliseconds since the epoch")]
Duration = Annotated[int, Field(description="Milliseconds")]
JobStatusName = Literal["CREATED", "RUNNING", "FAILING", "RESTARTING", "CANCELLING", "CANCELED", "FAILED", "FINISHED"]
ExecutionStateName = Literal[
    "CREATED",
    "SCHEDULED",
    "DEPLOYING",
    "INITIALIZING",
    "RUNNING",
    "FINISHED",
    "CANCELING",
    "CANCELED",
    "FAILED",
    "RECONCILING",
]


class Errors(_Plain):
    """Why a request was refused."""

    errors: list[str]


class Nothing(_Plain):
    """An empty object."""


# ---- the driver ----------------------------------------------------------------------------------------------------


class Features(_Dashed):
    web_submit: bool
    web_cancel: bool
    web_rescale: bool
    web_history: bool


class DashboardConfig(_Dashed):
    refresh_interval: Duration
    timezone_name: str
    timezone_offset: Duration
    flink_version: str
    flink_revision: str
    headrace_version: str
    features: Features


class DriverOverview(_Dashed):
    taskmanagers: int
    slots_total: int
    slots_available: int
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int
    flink_version: str
    flink_commit: str


# ---- jobs ----------------------------------------------------------------------------------------------------------


class JobStatusLine(_Plain):
    id: str
    status: JobStatusName


class JobList(_Plain):
    jobs: list[JobStatusLine]


class JobStatusAnswer(_Plain):
    status: JobStatusName


class TaskCounts(_Plain):
    total: int
    created: int
    scheduled: int
    deploying: int
    initializing: int
    running: int
    finished: int
    canceling: int
    canceled: int
    failed: int
    reconciling: int


class _JobTimes(_Dashed):
    jid: str
    name: str
    state: JobStatusName
    start_time: Millis
    end_time: Annotated[int, Field(description="-1 while the job runs")]
    duration: Duration
    pending_operators: int
    restarts: int


class JobOverview(_JobTimes):
    last_modification: Millis
    job_type: Annotated[Literal["STREAMING"], Field(alias="jobType")]
    tasks: TaskCounts


class JobsOverview(_Plain):
    jobs: list[JobOverview]


class PlanInputModel(_Plain):
    num: int
    id: str
    ship_strategy: str
    exchange: str


class PlanOperator(_Dashed):
    id: str
    name: str
    uid: str | None
    call_site: str


class PlanNode(_Plain):
    id: str
    parallelism: int
    operator: str
    operator_strategy: str
    description: str
    optimizer_properties: Nothing
    inputs: list[PlanInputModel]
    operators: list[PlanOperator]


class Plan(_Plain):
    jid: str
    name: str
    type: Literal["STREAMING"]
    nodes: list[PlanNode]


class PlanAnswer(_Plain):
    plan: Plan


class VertexMetrics(_Dashed):
    read_bytes: int
    read_bytes_complete: bool
    write_bytes: int
    write_bytes_complete: bool
    read_records: int
    read_records_complete: bool
    write_records: int
    write_records_complete: bool
    accumulated_busy_time: Duration
    accumulated_idle_time: Duration
    accumulated_backpressured_time: Duration
    read_records_per_second: float
    write_records_per_second: float
    read_bytes_per_second: float
    write_bytes_per_second: float
    busy_ratio: float
    backpressured_ratio: float
    idle_ratio: float
    busy_ratio_max: float
    backpressured_ratio_max: float
    queued_bytes: int
    spilled_bytes: int
    corrupt_records: int
    late_records: int
    current_watermark: int | None
    watermark_lag: Annotated[int | None, Field(description="Milliseconds behind the time of day")]


class JobVertex(_Dashed):
    id: str
    slot_sharing_group_id: Annotated[str, Field(alias="slotSharingGroupId")]
    name: str
    max_parallelism: Annotated[int, Field(alias="maxParallelism")]
    parallelism: int
    status: ExecutionStateName
    start_time: int
    end_time: int
    duration: int
    tasks: dict[ExecutionStateName, int]
    metrics: VertexMetrics
    spark_stage: Annotated[str | None, Field(description="Its page in the Spark UI, if that is served")]


class JobDetails(_JobTimes):
    is_stoppable: Annotated[bool, Field(alias="isStoppable")]
    job_type: Literal["STREAMING"]
    max_parallelism: Annotated[int, Field(alias="maxParallelism")]
    now: Millis
    timestamps: dict[JobStatusName, int]
    vertices: list[JobVertex]
    status_counts: dict[ExecutionStateName, int]
    plan: Plan
    failures: list[str]
    spark_ui: str | None


class JobExecutionConfig(_Dashed):
    restart_strategy: str
    job_parallelism: int
    object_reuse_mode: bool
    user_config: dict[str, str]


class JobConfigAnswer(_Dashed):
    jid: str
    name: str
    execution_config: JobExecutionConfig


class Accumulators(_Dashed):
    job_accumulators: list[Nothing]
    user_task_accumulators: list[Nothing]
    serialized_user_task_accumulators: Nothing


class _ExceptionInfo(_Camel):
    exception_name: str
    stacktrace: str
    timestamp: Millis
    task_name: str | None
    endpoint: str | None
    task_manager_id: str | None
    failure_labels: dict[str, str]


class ExceptionEntry(_ExceptionInfo):
    concurrent_exceptions: list[_ExceptionInfo]


class ExceptionHistory(_Plain):
    entries: list[ExceptionEntry]
    truncated: bool


class ExceptionsAnswer(_Camel):
    exception_history: ExceptionHistory


# ---- metrics -------------------------------------------------------------------------------------------------------


class MetricValue(_Plain):
    """Without `get`, only the names of the metrics."""

    id: str
    value: str | None = None


class MetricAggregate(_Plain):
    """Without `get`, only the names of the metrics."""

    id: str
    min: float | None = None
    max: float | None = None
    avg: float | None = None
    sum: float | None = None


# ---- vertices ------------------------------------------------------------------------------------------------------


class SubtaskModel(_Dashed):
    subtask: int
    status: ExecutionStateName
    attempt: int
    endpoint: str
    start_time: int
    end_time: int
    duration: int
    metrics: VertexMetrics
    taskmanager_id: str
    status_duration: dict[ExecutionStateName, int]


class Spread(_Plain):
    min: float
    max: float
    avg: float
    sum: float
    median: float


class Aggregated(_Dashed):
    metrics: dict[str, Spread]
    status_duration: dict[ExecutionStateName, Spread]


class VertexDetails(_Plain):
    id: str
    name: str
    parallelism: int
    max_parallelism: Annotated[int, Field(alias="maxParallelism")]
    now: Millis
    subtasks: list[SubtaskModel]
    aggregated: Aggregated


class SubtaskTimes(_Plain):
    subtask: int
    endpoint: str
    duration: Duration
    timestamps: dict[ExecutionStateName, int]


class SubtaskTimesAnswer(_Plain):
    id: str
    name: str
    now: Millis
    subtasks: list[SubtaskTimes]


class HostOfVertex(_Dashed):
    endpoint: str
    taskmanager_id: str
    status: ExecutionStateName
    start_time: int
    end_time: int
    duration: int
    metrics: VertexMetrics
    status_counts: dict[ExecutionStateName, int]


class HostsOfVertex(_Plain):
    id: str
    name: str
    now: Millis
    taskmanagers: list[HostOfVertex]


class UserAccumulators(_Dashed):
    id: str
    user_accumulators: list[Nothing]


Level = Literal["ok", "low", "high"]


class SubtaskBackPressure(_Camel):
    subtask: int
    attempt_number: Annotated[int, Field(alias="attempt-number")]
    backpressure_level: Annotated[Level, Field(alias="backpressureLevel")]
    ratio: float
    idle_ratio: float
    busy_ratio: float


class BackPressure(_Plain):
    status: Literal["ok", "deprecated"]
    backpressure_level: Annotated[Level, Field(alias="backpressureLevel")]
    end_timestamp: Annotated[int, Field(alias="end-timestamp")]
    subtasks: list[SubtaskBackPressure]


class FlameNode(_Plain):
    name: str
    value: int
    children: list[FlameNode]


class FlameGraph(_Camel):
    end_timestamp: Millis
    data: FlameNode
    missing_subtasks: int
    """How many subtasks did not answer in time."""


class Sample(_Plain):
    """Some of the records that a vertex has sent last, as text."""

    records: list[str]
    missing_subtasks: int
    """How many subtasks did not answer in time."""


# ---- checkpoints ---------------------------------------------------------------------------------------------------


class SummaryModel(_Plain):
    min: int
    max: int
    avg: int
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float


class CountsModel(_Plain):
    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


CheckpointStatusName = Literal["IN_PROGRESS", "COMPLETED", "FAILED"]


class _CheckpointTotals(_Plain):
    num_subtasks: int
    num_acknowledged_subtasks: int
    latest_ack_timestamp: Annotated[int, Field(description="-1: none has acknowledged")]
    end_to_end_duration: Annotated[int, Field(description="-1: none has acknowledged")]
    checkpointed_size: int
    state_size: int
    processed_data: int
    persisted_data: int
    objects_written: int
    unaligned: bool
    alignment_buffered: int


class TaskCheckpoint(_CheckpointTotals):
    id: str
    status: CheckpointStatusName


class Checkpoint(_CheckpointTotals):
    class_name: Annotated[str, Field(alias="className")]
    id: int
    status: CheckpointStatusName
    is_savepoint: bool
    savepoint_format: Annotated[str | None, Field(alias="savepointFormat")]
    checkpoint_type: Literal["CHECKPOINT", "UNALIGNED_CHECKPOINT", "SAVEPOINT", "SYNC_SAVEPOINT"]
    trigger_timestamp: Millis
    trigger: str
    full: bool
    full_reason: str | None
    chain_length: int
    shared_files: int
    shared_files_by_operator: dict[str, int]
    tasks: dict[str, TaskCheckpoint]
    external_path: str | None = None
    discarded: bool | None = None
    failure_timestamp: int | None = None
    failure_message: str | None = None
    failure_reason: str | None = None


class RestoredCheckpoint(_Plain):
    id: int
    restore_timestamp: Millis
    is_savepoint: bool
    external_path: str
    state_size: int


class LatestCheckpoints(_Plain):
    completed: Checkpoint | None
    savepoint: Checkpoint | None
    failed: Checkpoint | None
    restored: RestoredCheckpoint | None


class CheckpointSummary(_Plain):
    checkpointed_size: SummaryModel
    state_size: SummaryModel
    end_to_end_duration: SummaryModel
    alignment_buffered: SummaryModel
    processed_data: SummaryModel
    persisted_data: SummaryModel
    objects_written: SummaryModel


class Checkpoints(_Plain):
    counts: CountsModel
    summary: CheckpointSummary
    latest: LatestCheckpoints
    history: list[Checkpoint]


class Alignment(_Plain):
    buffered: int
    processed: int
    persisted: int
    duration: int


class AlignmentSummary(_Plain):
    buffered: SummaryModel
    processed: SummaryModel
    persisted: SummaryModel
    duration: SummaryModel


class SyncAsync(_Plain):
    sync: int
    async_: Annotated[int, Field(alias="async")]


class SyncAsyncSummary(_Plain):
    sync: SummaryModel
    async_: Annotated[SummaryModel, Field(alias="async")]


class TaskSummary(_Plain):
    checkpointed_size: SummaryModel
    state_size: SummaryModel
    end_to_end_duration: SummaryModel
    checkpoint_duration: SyncAsyncSummary
    alignment: AlignmentSummary
    start_delay: SummaryModel


class SubtaskCheckpoint(_Plain):
    """Of a subtask that has not reported, only index and status."""

    index: int
    status: Literal["completed", "pending_or_failed"]
    ack_timestamp: int | None = None
    end_to_end_duration: int | None = None
    checkpointed_size: int | None = None
    state_size: int | None = None
    checkpoint: SyncAsync | None = None
    alignment: Alignment | None = None
    start_delay: int | None = None
    unaligned_checkpoint: bool | None = None
    aborted: bool | None = None


class TaskCheckpointDetails(TaskCheckpoint):
    summary: TaskSummary
    subtasks: list[SubtaskCheckpoint]


class Externalization(_Plain):
    enabled: bool
    delete_on_cancellation: bool


class FullCheckpointConfig(_Plain):
    max_size: int | None
    max_files: int | None
    max_files_per_operator: int | None
    max_chain_length: int | None
    cooldown_ms: int
    retry_ms: int
    cron: str | None


class CheckpointConfigAnswer(_Plain):
    mode: Literal["exactly_once", "at_least_once"]
    interval: int
    timeout: int
    min_pause: int
    max_concurrent: int
    externalization: Externalization
    state_backend: str
    checkpoint_storage: str
    checkpoint_directory: str | None
    incremental: bool
    unaligned_checkpoints: bool
    tolerable_failed_checkpoints: int
    aligned_checkpoint_timeout: int
    checkpoints_after_tasks_finish: bool
    state_changelog_enabled: bool
    changelog_periodic_materialization_interval: int
    changelog_storage: str
    full_checkpoint: FullCheckpointConfig


class TimelineSubtask(_Dashed):
    """The timeline of a subtask in a checkpoint; null where a time is unknown."""

    model_config = ConfigDict(alias_generator=None)

    vertex: str
    vertex_name: Annotated[str, Field(alias="vertex-name")]
    index: int
    first_barrier: int | None
    last_barrier: int | None
    sync_start: int | None
    sync_end: int | None
    async_end: int | None
    ack_timestamp: int | None
    unaligned: bool | None
    state_size: int | None
    checkpointed_size: int | None


class Timeline(_Plain):
    id: int
    trigger_timestamp: Millis
    completed_timestamp: int | None
    subtasks: list[TimelineSubtask]


# ---- state ---------------------------------------------------------------------------------------------------------


class StateFilesLimits(_Plain):
    """The limits of the policy for full checkpoints; null: none."""

    max_size: int | None
    max_files: int | None
    max_files_per_operator: int | None
    max_chain_length: int | None


class StateFilesPoint(_Plain):
    checkpoint: int
    timestamp: Millis
    state_size: int
    checkpointed_size: int
    shared_files: int
    chain_length: int
    objects_written: int
    oldest_file_age: int | None
    full: bool
    full_reason: str | None


class OperatorFiles(_Plain):
    id: str
    name: str
    shared_files: int
    state_size: int


class StateFiles(_Plain):
    limits: StateFilesLimits
    points: list[StateFilesPoint]
    operators: list[OperatorFiles]


class SubtaskKeyGroups(_Plain):
    index: int
    first: int
    last: int
    keys: int | None
    bytes: int
    records: int


class OperatorKeyGroups(_Plain):
    id: str
    name: str
    subtasks: list[SubtaskKeyGroups]


class KeyGroups(_Plain):
    max_parallelism: int
    operators: list[OperatorKeyGroups]


class StateDescription(_Plain):
    operator: str
    operator_name: Annotated[str, Field(alias="operator-name")]
    uid: str | None
    state: str
    kind: str
    key_type: str | None
    value_type: str


class States(_Plain):
    checkpoint: int
    states: list[StateDescription]


class StateEntry(_Plain):
    key: Any
    namespace: str | None
    value: Any
    truncated: bool


class StatePage(_Plain):
    checkpoint: int
    entries: list[StateEntry]
    next: str | None


# ---- the story -----------------------------------------------------------------------------------------------------


class StoryCause(_Plain):
    message: str
    error: str
    location: str | None
    operator: str | None
    subtask: int | None
    traceback: str | None


class StoryPhases(_Plain):
    cancel: int | None
    wait: int | None
    schedule: int | None
    restore: int | None


class StoryAttempt(_Plain):
    number: int
    started: Millis
    running: int | None
    ended: int | None
    outcome: Literal["OPEN", "FINISHED", "FAILED", "CANCELED", "RESCALED"]
    cause: StoryCause | None
    restored_checkpoint: int | None
    phases: StoryPhases


class StoryAnswer(_Plain):
    attempts: list[StoryAttempt]
    dropped: int


# ---- operations ----------------------------------------------------------------------------------------------------


class Triggered(_Dashed):
    request_id: str


class FailureCause(_Dashed):
    model_config = ConfigDict(alias_generator=None)

    class_: Annotated[str, Field(alias="class")]
    stack_trace: Annotated[str, Field(alias="stack-trace")]


class OperationResult(_Plain):
    """Only the field of the operation, or its failure, is there."""

    location: str | None = None
    checkpoint_id: Annotated[int | None, Field(alias="checkpointId")] = None
    parallelism: int | None = None
    deleted: int | None = None
    failure_cause: Annotated[FailureCause | None, Field(alias="failure-cause")] = None
    failure_cause_of_checkpoint: Annotated[FailureCause | None, Field(alias="failureCause")] = None


class OperationStatus(_Plain):
    id: Literal["IN_PROGRESS", "COMPLETED"]


class OperationModel(_Plain):
    status: OperationStatus
    operation: OperationResult | None
