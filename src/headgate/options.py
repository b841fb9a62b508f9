"""Every option of Headgate in one table: key, kind, default, one sentence, and the keys it had before.

Keys are Flink's where Flink has the option; keys of our own start with `headgate.`. Reading and writing values is the
business of `headgate.config`; the command line and the documentation list this table.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

SECOND: Final = 1000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
KB: Final = 1024
MB: Final = 1024 * KB


class Kind(enum.Enum):
    """How the text of an option is read; the value is the word the documentation uses."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STRING = "string"
    DURATION = "duration"
    MEMORY = "memory"
    ENUM = "enum"


@dataclass(frozen=True)
class Option(Generic[T]):
    """One row of the table: key, kind, default (None = unset), one sentence, and the keys it had before.

    >>> PARALLELISM.key, PARALLELISM.default
    ('parallelism.default', 1)
    """

    key: str
    kind: Kind
    default: T
    doc: str
    older_keys: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    minimum: int | None = None


OPTIONS: Final[dict[str, Option[Any]]] = {}
CURRENT_KEY: Final[dict[str, str]] = {}  # older key -> key


def _add(option: Option[T]) -> Option[T]:
    for key in (option.key, *option.older_keys):
        assert key not in OPTIONS, key
        assert key not in CURRENT_KEY, key
    OPTIONS[option.key] = option
    CURRENT_KEY.update(dict.fromkeys(option.older_keys, option.key))
    return option


def _flag(key: str, doc: str, *older_keys: str, default: bool = False) -> Option[bool]:
    return _add(Option(key, Kind.BOOL, default, doc, older_keys))


def _count(key: str, default: int, doc: str, *older_keys: str, minimum: int = 0) -> Option[int]:
    return _add(Option(key, Kind.INT, default, doc, older_keys, minimum=minimum))


def _duration(key: str, default: int, doc: str, *older_keys: str, minimum: int = 0) -> Option[int]:
    return _add(Option(key, Kind.DURATION, default, doc, older_keys, minimum=minimum))


def _interval(key: str, doc: str, minimum: int = 1) -> Option[int | None]:
    return _add(Option[int | None](key, Kind.DURATION, None, doc, minimum=minimum))


def _memory(key: str, default: int, doc: str, *older_keys: str, minimum: int = 0) -> Option[int]:
    return _add(Option(key, Kind.MEMORY, default, doc, older_keys, minimum=minimum))


def _text(key: str, doc: str, *older_keys: str) -> Option[str | None]:
    return _add(Option[str | None](key, Kind.STRING, None, doc, older_keys))


def _choice(key: str, default: str, choices: str, doc: str, *older_keys: str) -> Option[str]:
    return _add(Option(key, Kind.ENUM, default, doc, older_keys, tuple(choices.split("|"))))


def _choice_or_none(key: str, choices: str, doc: str, *older_keys: str) -> Option[str | None]:
    return _add(Option[str | None](key, Kind.ENUM, None, doc, older_keys, tuple(choices.split("|"))))


# fmt: off

# --- The job ----------------------------------------------------------------------------------------------------------
PARALLELISM = _count("parallelism.default", 1, "Parallelism of operators that set none.", minimum=1)
JOB_NAME = _text("pipeline.name", "Name of the job; execute(name) overrides it.")
MAX_PARALLELISM = _count("pipeline.max-parallelism", -1, "Number of key groups of operators that set none; -1 derives it from the parallelism.", minimum=-1)
AUTO_GENERATE_UIDS = _flag("pipeline.auto-generate-uids", "Derive an id from the graph for operators without uid; false makes a missing uid an error.", default=True)
CHAINING = _flag("pipeline.operator-chaining.enabled", "Run neighbouring operators in one task where no shuffle is between them.", "pipeline.operator-chaining", default=True)
OBJECT_REUSE = _flag("pipeline.object-reuse", "Hand mutable state values out without copying; the program promises not to keep them.")
PAUSE_SOURCES = _flag("pipeline.sources.pause-until-first-checkpoint", "Hold the sources back until the first checkpoint is complete.")
BUFFER_TIMEOUT = _duration("execution.buffer-timeout", 100, "A buffer leaves after this time even if it is not full; 0 after every record, -1 only when full.", "execution.buffer-timeout.interval", minimum=-1)

# --- Runtime ----------------------------------------------------------------------------------------------------------
BUFFER_SIZE = _memory("headgate.buffer.size", 256 * KB, "A buffer leaves when it holds this much.", minimum=1)
INPUT_QUEUE_SIZE = _memory("headgate.input.queue-size", 8 * MB, "Input a subtask reads ahead before it holds its writers back.", minimum=1)
SLICE_TARGET = _duration("headgate.slice.target", 10, "A subtask turns to timers and control messages at least this often.", minimum=1)
CONTROL_HOST = _text("headgate.control.host", "Address that workers use to reach the driver; unset: loopback for local masters, else spark.driver.host.")
CONTROL_PORT = _count("headgate.control.port", 0, "Port of the driver's control service; 0 takes any free one.")
CONTROL_TIMEOUT = _duration("headgate.control.timeout", 20 * SECOND, "A worker that has not heard from the driver for so long stops itself.", minimum=1)
SLOTS_TIMEOUT = _duration("headgate.slots.timeout", 30 * SECOND, "How long a job waits for enough free Spark slots before it fails.")
RESERVED_SLOTS = _count("headgate.spark.reserved-slots", 0, "Spark slots that the job must leave free for other jobs of the session.")
SPARK_MASTER = _text("headgate.spark.master", "Spark master for a session that Headgate starts itself, for example local[4].")
PRINT_MAX_LINES = _count("headgate.print.max-lines-per-second", 10_000, "print() drops lines beyond this rate per job and says how many.", minimum=1)
COLLECT_MAX_UNCONFIRMED = _count("headgate.collect.max-unconfirmed", 64, "Batches of collected results on their way to the driver, per subtask.", minimum=1)

# --- Restart ----------------------------------------------------------------------------------------------------------
RESTART_TYPE = _choice_or_none("restart-strategy.type", "none|disable|off|fixed-delay|exponential-delay|failure-rate", "What to do when the job fails; unset: none without checkpointing, exponential-delay with it.", "restart-strategy")
FIXED_DELAY_ATTEMPTS = _count("restart-strategy.fixed-delay.attempts", 1, "Restarts before the job is given up.")
FIXED_DELAY_DELAY = _duration("restart-strategy.fixed-delay.delay", 1 * SECOND, "Pause before each restart.")
EXPONENTIAL_INITIAL_BACKOFF = _duration("restart-strategy.exponential-delay.initial-backoff", 1 * SECOND, "Pause before the first restart.", minimum=1)
EXPONENTIAL_MAX_BACKOFF = _duration("restart-strategy.exponential-delay.max-backoff", 1 * MINUTE, "Longest pause before a restart.", minimum=1)
EXPONENTIAL_MULTIPLIER = _add(Option("restart-strategy.exponential-delay.backoff-multiplier", Kind.FLOAT, 1.5, "The pause grows by this factor with each failure; must be greater than 1.", minimum=1))
EXPONENTIAL_RESET_THRESHOLD = _duration("restart-strategy.exponential-delay.reset-backoff-threshold", 1 * HOUR, "The pause is reset after the job ran this long without a failure.", minimum=1)
EXPONENTIAL_JITTER = _add(Option("restart-strategy.exponential-delay.jitter-factor", Kind.FLOAT, 0.1, "Random part of the pause, 0 to 1, so that jobs do not restart in step.", minimum=0))
EXPONENTIAL_ATTEMPTS = _add(Option[int | None]("restart-strategy.exponential-delay.attempts-before-reset-backoff", Kind.INT, None, "Restarts before the job is given up, counted from the last reset; unset: no limit.", minimum=1))
FAILURE_RATE_MAX_FAILURES = _count("restart-strategy.failure-rate.max-failures-per-interval", 1, "Failures within the interval that are still followed by a restart.", minimum=1)
FAILURE_RATE_INTERVAL = _duration("restart-strategy.failure-rate.failure-rate-interval", 1 * MINUTE, "Length of the interval.", minimum=1)
FAILURE_RATE_DELAY = _duration("restart-strategy.failure-rate.delay", 1 * SECOND, "Pause before each restart.")

# --- Checkpoints ------------------------------------------------------------------------------------------------------
CHECKPOINT_INTERVAL = _interval("execution.checkpointing.interval", "Time between two checkpoints; unset: no periodic checkpoints.")
CHECKPOINT_INTERVAL_BACKLOG = _interval("execution.checkpointing.interval-during-backlog", "Interval while a source works off a backlog; unset: the interval above, 0: none meanwhile.", minimum=0)
CHECKPOINT_MODE = _choice("execution.checkpointing.mode", "EXACTLY_ONCE", "EXACTLY_ONCE|AT_LEAST_ONCE", "Whether barriers are aligned (exactly once) or only counted.")
CHECKPOINT_TIMEOUT = _duration("execution.checkpointing.timeout", 10 * MINUTE, "A checkpoint that takes longer is aborted.", minimum=1)
CHECKPOINT_MIN_PAUSE = _duration("execution.checkpointing.min-pause", 0, "Time between the end of one checkpoint and the start of the next.")
CHECKPOINT_MAX_CONCURRENT = _count("execution.checkpointing.max-concurrent-checkpoints", 1, "Checkpoints under way at the same time.", minimum=1)
CHECKPOINT_TOLERABLE_FAILURES = _count("execution.checkpointing.tolerable-failed-checkpoints", 0, "Checkpoints that may fail in a row before the job does.")
CHECKPOINT_RETENTION = _choice("execution.checkpointing.externalized-checkpoint-retention", "NO_EXTERNALIZED_CHECKPOINTS", "NO_EXTERNALIZED_CHECKPOINTS|RETAIN_ON_CANCELLATION|DELETE_ON_CANCELLATION", "Whether checkpoints outlive the job.")
CHECKPOINT_NUM_RETAINED = _count("execution.checkpointing.num-retained", 1, "Completed checkpoints to keep; below 1 counts as 1.", "state.checkpoints.num-retained", minimum=-1)
CHECKPOINT_STORAGE = _choice_or_none("execution.checkpointing.storage", "jobmanager|filesystem", "Where checkpoints live: in the driver or in files; unset: files if a directory is set.", "state.checkpoint-storage")
CHECKPOINT_DIR = _text("execution.checkpointing.dir", "Directory (any fsspec URL) for checkpoints.", "state.checkpoints.dir")
SAVEPOINT_DIR = _text("execution.checkpointing.savepoint-dir", "Default directory for savepoints.", "state.savepoints.dir")
CHECKPOINT_CREATE_SUBDIR = _flag("execution.checkpointing.create-subdir", "Give each job its own directory below the checkpoint directory.", "state.checkpoints.create-subdir", default=True)
CHECKPOINT_INLINE_THRESHOLD = _memory("execution.checkpointing.data-inline-threshold", 20 * KB, "State smaller than this is stored inside the metadata.", "state.storage.fs.memory-threshold")
CHECKPOINT_WRITE_BUFFER = _memory("execution.checkpointing.write-buffer-size", 4096, "Write buffer of checkpoint files.", "state.storage.fs.write-buffer-size", minimum=1)
CHECKPOINT_INCREMENTAL = _flag("execution.checkpointing.incremental", "Store only what changed since the last checkpoint.", "state.backend.incremental")
UNALIGNED = _flag("execution.checkpointing.unaligned.enabled", "Let barriers overtake data; the data overtaken becomes part of the checkpoint.", "execution.checkpointing.unaligned")
UNALIGNED_FORCED = _flag("execution.checkpointing.unaligned.forced", "Unaligned checkpoints even where they are refused by default.")
ALIGNED_TIMEOUT = _duration("execution.checkpointing.aligned-checkpoint-timeout", 0, "An alignment that takes longer turns unaligned; 0 starts unaligned.", "execution.checkpointing.alignment-timeout")
UNALIGNED_SUBTASKS_PER_FILE = _count("execution.checkpointing.unaligned.max-subtasks-per-channel-state-file", 5, "Subtasks that share one file of in-flight data.", minimum=1)
UNALIGNED_RECOVER_DOWNSTREAM = _flag("execution.checkpointing.unaligned.recover-output-on-downstream.enabled", "Replay stored output in the reader instead of the writer.")
UNALIGNED_INTERRUPTIBLE_TIMERS = _flag("execution.checkpointing.unaligned.interruptible-timers.enabled", "Let a barrier pass between two timers that fire at once.")
CHECKPOINT_DURING_RECOVERY = _flag("execution.checkpointing.during-recovery.enabled", "Take checkpoints while in-flight data is still replayed; needs recover-output-on-downstream.")
CHECKPOINT_AFTER_FINISH = _flag("execution.checkpointing.checkpoints-after-tasks-finish", "Go on taking checkpoints when some tasks have finished.", "execution.checkpointing.checkpoints-after-tasks-finish.enabled", default=True)
CLEANER_PARALLEL = _flag("execution.checkpointing.cleaner.parallel-mode", "Delete the files of an old checkpoint in parallel.", default=True)
SYNC_PHASE_TIMEOUT = _duration("execution.checkpointing.sync-phase-timeout", 0, "Fail a task whose synchronous phase takes longer; 0 never.")
FILE_MERGING = _flag("execution.checkpointing.file-merging.enabled", "Write the small files of a subtask into one.")
FILE_MERGING_ACROSS = _flag("execution.checkpointing.file-merging.across-checkpoint-boundary", "Let one file hold state of several checkpoints.")
FILE_MERGING_BLOCKING = _flag("execution.checkpointing.file-merging.pool-blocking", "Wait for a file of the pool instead of opening another.")
FILE_MERGING_MAX_SIZE = _memory("execution.checkpointing.file-merging.max-file-size", 32 * MB, "A merged file is closed at this size.", minimum=1)
FILE_MERGING_AMPLIFICATION = _add(Option("execution.checkpointing.file-merging.max-space-amplification", Kind.FLOAT, 2.0, "Rewrite merged files when dead space exceeds this factor.", minimum=1))
LOCAL_BACKUP = _flag("execution.checkpointing.local-backup.enabled", "Keep a copy of the newest state on the worker.")
LOCAL_BACKUP_DIRS = _text("execution.checkpointing.local-backup.dirs", "Directories for local copies, separated by commas.", "taskmanager.state.local.root-dirs")

# --- Recovery ---------------------------------------------------------------------------------------------------------
DRY_RUN = _flag("headgate.dry-run", "List what would become of the state that execution.state-recovery.path names, and start nothing.")
RECOVERY_FROM_LOCAL = _flag("execution.state-recovery.from-local", "Restore from local copies where they are still there.", "state.backend.local-recovery")
RECOVERY_PATH = _text("execution.state-recovery.path", "Checkpoint or savepoint to start from.", "execution.savepoint.path")
RESUME = _flag("headgate.resume", "Continue the newest job of this name in the checkpoint directory; set by --resume.")
ALIGNMENT_MEMORY = _memory("headgate.alignment.memory", 16 * MB, "Rows behind blocked channels that a subtask keeps in memory; the rest goes to io.tmp.dirs.")
ALIGNMENT_SOFT = _memory("headgate.alignment.spill.soft", 64 * MB, "A blocked channel that has spilled so much gets its writer held until it is unblocked.")
ALIGNMENT_LIMIT = _memory("headgate.alignment.spill.max", 1024 * MB, "More than this behind the blocked channels of a subtask: the checkpoint is declined.")
FULL_MAX_SIZE = _add(Option[int | None]("headgate.full-checkpoint.max-size", Kind.MEMORY, None, "A full checkpoint follows an incremental one whose full size is larger; unset: never.", minimum=1))
FULL_MAX_FILES = _add(Option[int | None]("headgate.full-checkpoint.max-files", Kind.INT, None, "A full checkpoint follows one that needs more shared files; unset: never.", minimum=1))
FULL_MAX_FILES_PER_OPERATOR = _add(Option[int | None]("headgate.full-checkpoint.max-files-per-operator", Kind.INT, None, "A full checkpoint follows one that needs more shared files for one operator; unset: never.", minimum=1))
FULL_MAX_CHAIN = _add(Option[int | None]("headgate.full-checkpoint.max-chain-length", Kind.INT, None, "A full checkpoint follows one that builds on more checkpoints; unset: never.", minimum=1))
FULL_COOLDOWN = _duration("headgate.full-checkpoint.cooldown", HOUR, "Time between a full checkpoint and the next one that a limit asks for.")
FULL_RETRY = _duration("headgate.full-checkpoint.retry", MINUTE, "A full checkpoint that failed is tried again after this time, then after twice as long, up to the cooldown.", minimum=1)
FULL_CRON = _text("headgate.full-checkpoint.cron", "When to take a full checkpoint, in the driver's local time, as minute hour day month weekday: '0 3 * * *' is every night at 3.")
STEP_BACK = _flag("headgate.recovery.step-back", "Start from an older retained checkpoint when the newest is damaged; false: refuse.", default=True)
ALLOW_REPEATED_OUTPUT = _flag("headgate.recovery.allow-repeated-output", "Step back over a damaged checkpoint even if a two-phase sink may have committed with it: its output is written again.")
RESUME_PREFERS_CHECKPOINT = _flag("headgate.resume.prefer-checkpoint", "Let --resume take the newest checkpoint though the job was stopped with a savepoint that is newer: its output since then comes again.")
FORCE_CHECKPOINTING = _flag("headgate.checkpointing.force", "Checkpoints also in jobs with iterations, which Headgate does not have: no effect, kept for programs that set it.")
RECOVERY_CLAIM_MODE = _choice("execution.state-recovery.claim-mode", "NO_CLAIM", "NO_CLAIM|CLAIM|LEGACY", "Who owns the files of the snapshot the job starts from.", "execution.savepoint-restore-mode")
RECOVERY_IGNORE_UNCLAIMED = _flag("execution.state-recovery.ignore-unclaimed-state", "Drop state that belongs to no operator of the program.", "execution.savepoint.ignore-unclaimed-state")
RECOVERY_WITHOUT_CHANNEL_STATE = _count("execution.state-recovery.without-channel-state.checkpoint-id", -1, "Ignore the in-flight data of this checkpoint (loses data); -1 of none.", "execution.checkpointing.recover-without-channel-state.checkpoint-id", minimum=-1)

# --- State ------------------------------------------------------------------------------------------------------------
ASYNC_SNAPSHOTS = _flag("state.backend.async", "Write snapshots while records go on; false: the subtask waits until its part is written.", default=True)
STATE_BACKEND = _choice("state.backend.type", "hashmap", "hashmap|rocksdb", "Where keyed state lives while the job runs.", "state.backend")
ROCKSDB_TRANSFER_THREADS = _count("state.backend.rocksdb.checkpoint.transfer.thread.num", 4, "Threads that copy files to and from checkpoints.", minimum=1)
ROCKSDB_TIMER_SERVICE = _choice("state.backend.rocksdb.timer-service.factory", "ROCKSDB", "ROCKSDB|HEAP", "Where timers live with the rocksdb backend.")
ROCKSDB_TTL_QUERY_ENTRIES = _count("state.backend.rocksdb.compaction.filter.query-time-after-num-entries", 1000, "Expiry looks at the clock once per this many entries.", minimum=1)
ROCKSDB_TTL_COMPACTION = _duration("state.backend.rocksdb.compaction.filter.periodic-compaction-time", 30 * DAY, "Files older than this are cleaned of expired state; 0 never.")
CHANGELOG = _flag("state.changelog.enabled", "Write every state change to a log besides the checkpoints.")
CHANGELOG_STORAGE = _add(Option("state.changelog.storage", Kind.STRING, "memory", "Where that log lives."))
CHANGELOG_MATERIALIZE = _duration("state.changelog.periodic-materialize.interval", 10 * MINUTE, "How often the log is folded into a snapshot.", minimum=1)
CHANGELOG_MAX_FAILURES = _count("state.changelog.max-failures-allowed", 3, "Snapshots of the log that may fail in a row.")

IO_TMP_DIRS = _text("io.tmp.dirs", "Directory on each worker for working files of state; unset: the system's temporary directory.")
ROCKSDB_MEMORY = _memory("state.backend.rocksdb.memory.fixed-per-slot", 64 * MB, "Memory that RocksDB may use in one worker: block cache and write buffers together.", minimum=1)
TTL_MIGRATION = _flag("headgate.state.ttl-migration.enabled", "Let a state's time to live be switched on or off at a restore; false: that is an error.")

# --- Output and operations --------------------------------------------------------------------------------------------
COMMITTER_RETRIES = _count("sink.committer.retries", 10, "Times a sink's commit is tried again before the job fails.")
CHECKPOINT_HISTORY = _count("web.checkpoints.history", 10, "Checkpoints that REST and dashboard remember.")
REST_ENABLED = _flag("headgate.rest.enabled", "Serve REST on the driver.", default=True)
REST_ADDRESS = _add(Option("rest.address", Kind.STRING, "127.0.0.1", "Address that REST listens on; beyond loopback a token is needed.", ("rest.bind-address",)))
REST_PORT = _count("rest.port", 8081, "Port of REST; if it is taken, the next free one. 0 takes any.", "rest.bind-port")
REST_TOKEN = _text("headgate.rest.token", "What requests must carry as 'Authorization: Bearer ...'; hidden wherever options are shown.")
REST_STORE_DURATION = _duration("rest.async.store-duration", 5 * MINUTE, "How long the result of a triggered operation can be asked for.")
# fmt: on
