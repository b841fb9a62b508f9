"""Every option of Headrace in one table, and the configuration that holds their values.

Keys are Flink's where Flink has the option; keys of our own start with `headrace.`. Inside this package an option is
named by its constant. A value comes from one of four places, the first that has it wins:

    code (env or Configuration)  >  -D key=value  >  headrace.yaml  >  default

Durations are whole milliseconds and memory sizes are bytes once they are read; in text they carry a unit ("10 min",
"256 kb"). Keys that start with `spark.` go to Spark as they are, keys that start with `user.` belong to the program. A
configuration holds any key, as Flink's does; `execute` calls `check`, which refuses keys that are not known.
"""

from __future__ import annotations

import difflib
import enum
import math
import os
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar, overload

from headrace.errors import ConfigError

T = TypeVar("T")
Value = bool | int | float | str

SECOND: Final = 1000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
KB: Final = 1024
MB: Final = 1024 * KB

# --- The table --------------------------------------------------------------------------------------------------------


class OptionKind(enum.Enum):
    """The kinds of options, by which their text is read; the value is the word the documentation uses."""

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

    An option that is not set has the value of its `fallback`, if that one is set.
    """

    key: str
    kind: OptionKind
    default: T
    doc: str
    older_keys: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    fallback: str | None = None


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
    return _add(Option(key, OptionKind.BOOL, default, doc, older_keys))


def _number(kind: OptionKind, key: str, default: int, doc: str, *older_keys: str, minimum: int = 0) -> Option[int]:
    return _add(Option(key, kind, default, doc, older_keys, minimum=minimum))


_count = partial(_number, OptionKind.INT)
_duration = partial(_number, OptionKind.DURATION)
_memory = partial(_number, OptionKind.MEMORY)


def _text(key: str, doc: str, *older_keys: str) -> Option[str | None]:
    return _add(Option[str | None](key, OptionKind.STRING, None, doc, older_keys))


def _choice(key: str, default: str, choices: str, doc: str, *older_keys: str) -> Option[str]:
    return _add(Option(key, OptionKind.ENUM, default, doc, older_keys, tuple(choices.split("|"))))


def _choice_or_none(key: str, choices: str, doc: str, *older_keys: str) -> Option[str | None]:
    return _add(Option[str | None](key, OptionKind.ENUM, None, doc, older_keys, tuple(choices.split("|"))))


# fmt: off

# --- The job ----------------------------------------------------------------------------------------------------------
PARALLELISM = _count("parallelism.default", 1, "Parallelism of operators that set none.", minimum=1)
JOB_NAME = _text("pipeline.name", "Name of the job; execute(name) overrides it.")
MAX_PARALLELISM = _count("pipeline.max-parallelism", -1, "Number of key groups of operators that set none; -1 derives it from the parallelism.", minimum=-1)
AUTO_GENERATE_UIDS = _flag("pipeline.auto-generate-uids", "Derive an id from the graph for operators without uid; false makes a missing uid an error.", default=True)
CHAINING = _flag("pipeline.operator-chaining.enabled", "Run neighbouring operators in one task where no shuffle is between them.", "pipeline.operator-chaining", default=True)
RUNTIME_MODE = _choice("execution.runtime-mode", "STREAMING", "STREAMING|BATCH|AUTOMATIC", "BATCH: reduce(), sum() and the like give one result for each key, when the bounded input has ended, and time stands still until then; AUTOMATIC: BATCH if all sources are bounded.")
JOB_PARAMETERS = _text("pipeline.global-job-parameters", "Values that functions read with get_job_parameter(), as key:value, separated by commas.")
PYTHON_FILES = _text("python.files", "Modules, archives and directories of modules for the job, separated by commas, as env.add_python_file().")
PYTHON_ARCHIVES = _text("python.archives", "Archives that workers unpack, as path or path#directory, separated by commas, as env.add_python_archive().")
PYTHON_REQUIREMENTS = _text("python.requirements", "Packages for the job, as requirements.txt or requirements.txt#directory, as env.set_python_requirements().")
OBJECT_REUSE = _flag("pipeline.object-reuse", "Hand mutable state values and records out without copying; the program promises not to keep or change them.")
BUFFER_TIMEOUT = _duration("execution.buffer-timeout", 100, "A buffer leaves after this time even if it is not full, and at once after a pause; nearly half of it, at most 45 ms, is for gathering single records. 30 ms: for low latency, 0: after every record, -1: only when full.", "execution.buffer-timeout.interval", minimum=-1)

# --- Runtime ----------------------------------------------------------------------------------------------------------
BUFFER_SIZE = _memory("headrace.buffer.size", 256 * KB, "A buffer leaves when it holds this much.", minimum=1)
INPUT_QUEUE_SIZE = _memory("headrace.input.queue-size", 4 * MB, "Input a subtask reads ahead at most before it holds its writers back.", minimum=1)
INPUT_QUEUE_TIME = _duration("headrace.input.queue-time", 100, "A subtask reads ahead what it processes in this time, at most headrace.input.queue-size. A barrier of an aligned checkpoint waits behind it.", minimum=1)
SLICE_TARGET = _duration("headrace.slice.target", 10, "A subtask processes records for about this time before it turns to timers and control messages; for up to about four times as long where other processes keep it from the CPU.", minimum=1)
AUTO_WATERMARK_INTERVAL = _duration("pipeline.auto-watermark-interval", 200, "How often watermarks are made from the records that have come; 0: never, unless a generator emits them at records.")
CONTROL_HOST = _text("headrace.control.host", "Address that workers use to reach the driver; unset: loopback for local masters, else spark.driver.host.")
CONTROL_PORT = _count("headrace.control.port", 0, "Port of the driver's control service; 0 takes any free one.")
CONTROL_TIMEOUT = _duration("headrace.control.timeout", 20 * SECOND, "A worker that has not heard from the driver for so long stops itself.", minimum=1)
SLOTS_TIMEOUT = _duration("headrace.slots.timeout", 30 * SECOND, "How long a job waits for enough free Spark slots before it fails.")
RESERVED_SLOTS = _count("headrace.spark.reserved-slots", 0, "Spark slots that the job must leave free for other jobs of the session.")
SPARK_MASTER = _text("headrace.spark.master", "Spark master for a session that Headrace starts itself, for example local[4].")
PRINT_MAX_LINES = _count("headrace.print.max-lines-per-second", 10_000, "print() drops lines beyond this rate per job and says how many.", minimum=1)
COLLECT_MAX_UNCONFIRMED = _count("headrace.collect.max-unconfirmed", 64, "Batches of collected results on their way to the driver, per subtask.", minimum=1)

LOG_FORMAT = _choice("headrace.log.format", "text", "text|json", "How log records are written to the driver's stderr: lines of text or of JSON.")
LOG_LEVEL = _choice("headrace.log.level", "INFO", "DEBUG|INFO|WARNING|ERROR", "The least level of log records on the driver's stderr; set by --verbose and --quiet.")

# --- Restart ----------------------------------------------------------------------------------------------------------
RESTART_TYPE = _choice_or_none("restart-strategy.type", "none|disable|off|fixed-delay|exponential-delay|failure-rate", "What to do when the job fails; unset: none without checkpointing, exponential-delay with it.", "restart-strategy")
FIXED_DELAY_ATTEMPTS = _count("restart-strategy.fixed-delay.attempts", 1, "Restarts before the job is given up.")
FIXED_DELAY_DELAY = _duration("restart-strategy.fixed-delay.delay", 1 * SECOND, "Pause before each restart.")
EXPONENTIAL_INITIAL_BACKOFF = _duration("restart-strategy.exponential-delay.initial-backoff", 1 * SECOND, "Pause before the first restart.", minimum=1)
EXPONENTIAL_MAX_BACKOFF = _duration("restart-strategy.exponential-delay.max-backoff", 1 * MINUTE, "Longest pause before a restart.", minimum=1)
EXPONENTIAL_MULTIPLIER = _add(Option("restart-strategy.exponential-delay.backoff-multiplier", OptionKind.FLOAT, 1.5, "The pause grows by this factor with each failure; must be greater than 1.", minimum=1))
EXPONENTIAL_RESET_THRESHOLD = _duration("restart-strategy.exponential-delay.reset-backoff-threshold", 1 * HOUR, "The pause is reset after the job ran this long without a failure.", minimum=1)
EXPONENTIAL_JITTER = _add(Option("restart-strategy.exponential-delay.jitter-factor", OptionKind.FLOAT, 0.1, "Random part of the pause, 0 to 1, so that jobs do not restart in step.", minimum=0))
EXPONENTIAL_ATTEMPTS = _add(Option[int | None]("restart-strategy.exponential-delay.attempts-before-reset-backoff", OptionKind.INT, None, "Restarts before the job is given up, counted from the last reset; unset: no limit.", minimum=1))
FAILURE_RATE_MAX_FAILURES = _count("restart-strategy.failure-rate.max-failures-per-interval", 1, "Failures within the interval that are still followed by a restart.", minimum=1)
FAILURE_RATE_INTERVAL = _duration("restart-strategy.failure-rate.failure-rate-interval", 1 * MINUTE, "Length of the interval.", minimum=1)
FAILURE_RATE_DELAY = _duration("restart-strategy.failure-rate.delay", 1 * SECOND, "Pause before each restart.")

# --- Checkpoints ------------------------------------------------------------------------------------------------------
CHECKPOINT_INTERVAL = _add(Option[int | None]("execution.checkpointing.interval", OptionKind.DURATION, None, "Time between two checkpoints; unset: no periodic checkpoints.", minimum=10))
CHECKPOINT_INTERVAL_BACKLOG = _add(Option[int | None]("execution.checkpointing.interval-during-backlog", OptionKind.DURATION, None, "Interval while a source reads records from before it started; unset: the interval above, 0: no checkpoints meanwhile.", minimum=0))
CHECKPOINT_MODE = _choice("execution.checkpointing.mode", "EXACTLY_ONCE", "EXACTLY_ONCE|AT_LEAST_ONCE", "Whether barriers are aligned (exactly once) or only counted.")
CHECKPOINT_TIMEOUT = _duration("execution.checkpointing.timeout", 10 * MINUTE, "A checkpoint that takes longer is aborted.", minimum=10)
CHECKPOINT_MIN_PAUSE = _duration("execution.checkpointing.min-pause", 0, "Time between the end of one checkpoint and the start of the next.")
CHECKPOINT_MAX_CONCURRENT = _count("execution.checkpointing.max-concurrent-checkpoints", 1, "Checkpoints under way at the same time.", minimum=1)
CHECKPOINT_TOLERABLE_FAILURES = _count("execution.checkpointing.tolerable-failed-checkpoints", 0, "Checkpoints that may fail in a row before the job does.")
CHECKPOINT_RETENTION = _choice("execution.checkpointing.externalized-checkpoint-retention", "NO_EXTERNALIZED_CHECKPOINTS", "NO_EXTERNALIZED_CHECKPOINTS|RETAIN_ON_CANCELLATION|DELETE_ON_CANCELLATION", "Whether checkpoints outlive the job.")
CHECKPOINT_NUM_RETAINED = _count("execution.checkpointing.num-retained", 1, "Completed checkpoints to keep; below 1 counts as 1.", "state.checkpoints.num-retained", minimum=-1)
CHECKPOINT_STORAGE = _choice_or_none("execution.checkpointing.storage", "jobmanager|filesystem", "Where checkpoints live: in the driver or in files; unset: files if a directory is set.", "state.checkpoint-storage")
CHECKPOINT_DIR = _text("execution.checkpointing.dir", "Directory (a path, or a URL: s3, gs, az, abfs, abfss, webhdfs, swebhdfs) for checkpoints.", "state.checkpoints.dir")
SAVEPOINT_DIR = _text("execution.checkpointing.savepoint-dir", "Default directory for savepoints.", "state.savepoints.dir")
CHECKPOINT_CREATE_SUBDIR = _flag("execution.checkpointing.create-subdir", "Give each job its own directory below the checkpoint directory.", "state.checkpoints.create-subdir", default=True)
CHECKPOINT_INLINE_THRESHOLD = _memory("execution.checkpointing.data-inline-threshold", 20 * KB, "State smaller than this is stored inside the metadata.", "state.storage.fs.memory-threshold")
CHECKPOINT_WRITE_BUFFER = _memory("execution.checkpointing.write-buffer-size", 4096, "Write buffer of checkpoint files.", "state.storage.fs.write-buffer-size", minimum=1)
STORAGE_PRIVATE = _flag("headrace.storage.private-files", "Let only this user read checkpoints, savepoints and job logs on local file systems: files get mode 0600, directories 0700.")
CHECKPOINT_INCREMENTAL = _flag("execution.checkpointing.incremental", "Store only what changed since the last checkpoint.", "state.backend.incremental")
UNALIGNED = _flag("execution.checkpointing.unaligned.enabled", "Let barriers overtake data; the data overtaken becomes part of the checkpoint.", "execution.checkpointing.unaligned")
UNALIGNED_FORCED = _flag("execution.checkpointing.unaligned.forced", "Allow unaligned checkpoints also in jobs with partition_custom().")
ALIGNED_TIMEOUT = _duration("execution.checkpointing.aligned-checkpoint-timeout", 0, "An alignment that takes longer turns unaligned; 0 starts unaligned.", "execution.checkpointing.alignment-timeout")
CHECKPOINT_AFTER_FINISH = _flag("execution.checkpointing.checkpoints-after-tasks-finish", "Go on taking checkpoints when some tasks have finished.", "execution.checkpointing.checkpoints-after-tasks-finish.enabled", default=True)
LOCAL_BACKUP = _add(Option("execution.checkpointing.local-backup.enabled", OptionKind.BOOL, False, "Keep a copy of the newest state on the worker; unset: as execution.state-recovery.from-local.", fallback="execution.state-recovery.from-local"))
LOCAL_BACKUP_DIRS = _text("execution.checkpointing.local-backup.dirs", "Directories for local copies, separated by commas.", "taskmanager.state.local.root-dirs")

# --- Recovery ---------------------------------------------------------------------------------------------------------
DRY_RUN = _flag("headrace.dry-run", "List what would become of the state that execution.state-recovery.path names, and start nothing.")
RECOVERY_FROM_LOCAL = _flag("execution.state-recovery.from-local", "Restore from local copies where they are still there.", "state.backend.local-recovery")
RECOVERY_PATH = _text("execution.state-recovery.path", "Checkpoint or savepoint to start from.", "execution.savepoint.path")
RESUME = _flag("headrace.resume", "Continue the newest job of this name in the checkpoint directory; set by --resume.")
ALIGNMENT_MEMORY = _memory("headrace.alignment.memory", 16 * MB, "Rows behind blocked channels that a subtask keeps in memory; the rest goes to io.tmp.dirs.")
ALIGNMENT_SOFT = _memory("headrace.alignment.spill.soft", 64 * MB, "A blocked channel that has spilled so much gets its writer held until it is unblocked.")
ALIGNMENT_LIMIT = _memory("headrace.alignment.spill.max", 1024 * MB, "More than this behind the blocked channels of a subtask: the checkpoint is declined.")
FULL_MAX_SIZE = _add(Option[int | None]("headrace.full-checkpoint.max-size", OptionKind.MEMORY, None, "A full checkpoint follows an incremental one whose full size is larger; unset: never.", minimum=1))
FULL_MAX_FILES = _add(Option[int | None]("headrace.full-checkpoint.max-files", OptionKind.INT, None, "A full checkpoint follows one that needs more shared files; unset: never.", minimum=1))
FULL_MAX_FILES_PER_OPERATOR = _add(Option[int | None]("headrace.full-checkpoint.max-files-per-operator", OptionKind.INT, None, "A full checkpoint follows one that needs more shared files for one operator; unset: never.", minimum=1))
FULL_MAX_CHAIN = _add(Option[int | None]("headrace.full-checkpoint.max-chain-length", OptionKind.INT, None, "A full checkpoint follows one that builds on more checkpoints; unset: never.", minimum=1))
FULL_COOLDOWN = _duration("headrace.full-checkpoint.cooldown", HOUR, "Time between a full checkpoint and the next one that a limit asks for.")
FULL_RETRY = _duration("headrace.full-checkpoint.retry", MINUTE, "A full checkpoint that failed is tried again after this time, then after twice as long, up to the cooldown.", minimum=1)
FULL_CRON = _text("headrace.full-checkpoint.cron", "When to take a full checkpoint, in the driver's local time, as minute hour day month weekday: '0 3 * * *' is every night at 3.")
STEP_BACK = _flag("headrace.recovery.step-back", "Start from an older retained checkpoint when the newest is damaged; false: refuse.", default=True)
ALLOW_REPEATED_OUTPUT = _flag("headrace.recovery.allow-repeated-output", "Step back over a damaged checkpoint even if a two-phase sink may have committed with it: its output is written again.")
RESUME_PREFERS_CHECKPOINT = _flag("headrace.resume.prefer-checkpoint", "Let --resume take the newest checkpoint though the job was stopped with a savepoint that is newer: its output since then comes again.")
RECOVERY_CLAIM_MODE = _choice("execution.state-recovery.claim-mode", "NO_CLAIM", "NO_CLAIM|CLAIM|LEGACY", "Who owns the files of the snapshot the job starts from.", "execution.savepoint-restore-mode")
RECOVERY_IGNORE_UNCLAIMED = _flag("execution.state-recovery.ignore-unclaimed-state", "Drop state that no operator of the program takes.", "execution.savepoint.ignore-unclaimed-state")
RECOVERY_WITHOUT_CHANNEL_STATE = _count("execution.state-recovery.without-channel-state.checkpoint-id", -1, "Restore this checkpoint without its in-flight data, which is lost; -1: none.", "execution.checkpointing.recover-without-channel-state.checkpoint-id", minimum=-1)

# --- State ------------------------------------------------------------------------------------------------------------
ASYNC_SNAPSHOTS = _flag("state.backend.async", "Write snapshots while records go on; false: the subtask waits until its part is written.", default=True)
STATE_BACKEND = _choice("state.backend.type", "hashmap", "hashmap|rocksdb", "Where keyed state lives while the job runs.", "state.backend")
ROCKSDB_TTL_QUERY_ENTRIES = _count("state.backend.rocksdb.compaction.filter.query-time-after-num-entries", 1000, "Rows that the removal of expired state checks between two looks at the clock.", minimum=1)
ROCKSDB_TTL_COMPACTION = _duration("state.backend.rocksdb.compaction.filter.periodic-compaction-time", 30 * DAY, "RocksDB rewrites a file of state with a time to live that is older than this, which frees the space of removed rows; 0: never.")

IO_TMP_DIRS = _text("io.tmp.dirs", "Directory on each worker for working files of state; unset: the system's temporary directory.")
ROCKSDB_MEMORY = _memory("state.backend.rocksdb.memory.fixed-per-slot", 64 * MB, "Memory that RocksDB may use in one worker: block cache and write buffers together. Entries in use have memory of their own, see headrace.rocksdb.cache-size.", minimum=1)
ROCKSDB_CACHE = _add(Option[int | None]("headrace.rocksdb.cache-size", OptionKind.MEMORY, None, "Memory for entries in use, in front of RocksDB, in one worker; unset: four times state.backend.rocksdb.memory.fixed-per-slot.", minimum=1))
TTL_MIGRATION = _flag("headrace.state.ttl-migration.enabled", "Let a state's time to live be switched on or off at a restore; false: that is an error.")

# --- Output and operations --------------------------------------------------------------------------------------------
COMMITTER_RETRIES = _count("sink.committer.retries", 10, "Times a sink's commit is tried again before the job fails.")
CHECKPOINT_HISTORY = _count("web.checkpoints.history", 10, "Checkpoints that REST and dashboard remember.")
REST_ENABLED = _flag("headrace.rest.enabled", "Serve REST on the driver.", default=True)
REST_ADDRESS = _add(Option("rest.address", OptionKind.STRING, "127.0.0.1", "Address that REST listens on; beyond loopback a token must be given.", ("rest.bind-address",)))
REST_PORT = _count("rest.port", 8081, "Port of REST; if it is taken, the next free one. 0 takes any.", "rest.bind-port")
REST_AUTHENTICATION = _flag("headrace.rest.authentication.enabled", "On loopback too, requests must carry a token; if none is given one is made, which the user's command line finds by itself.", default=True)
REST_TOKEN = _text("headrace.rest.token", "What requests must carry as 'Authorization: Bearer ...'; hidden wherever options are shown, and refused on the command line. HEADRACE_REST_TOKEN in the environment is used if neither this nor the file is set.")
REST_TOKEN_FILE = _text("headrace.rest.token-file", "File with the token; only its owner may read it.")
REST_CERTIFICATE = _text("headrace.rest.tls.certificate-file", "Certificate of REST in PEM form, with what a chain needs: REST speaks TLS then.")
REST_KEY = _text("headrace.rest.tls.key-file", "Key of the certificate in PEM form; only its owner may read it.")
STATE_BROWSER_LIMIT = _memory("headrace.rest.state-browser.max-size", 256 * MB, "State of one subtask, in a checkpoint, up to which REST reads it for the state browser.")
REST_STORE_DURATION = _duration("rest.async.store-duration", 5 * MINUTE, "How long the result of a triggered operation can be asked for.")
# fmt: on

# --- Keys of Flink that are not options here --------------------------------------------------------------------------

_FOREIGN: Final[tuple[tuple[str, tuple[str, ...] | None, str], ...]] = (
    # prefix of keys; the values that change nothing (None: any), which are accepted with a warning; what to use
    ("taskmanager.", None, "Spark runs the workers; spark.executor.* sizes them"),
    ("jobmanager.", None, "the driver is the program itself; spark.driver.* sizes it"),
    ("high-availability.", None, "start the program again with headrace run --resume"),
    ("metrics.", None, "statistics of checkpoints are in REST"),
    ("env.", None, "Spark starts the processes"),
    ("classloader.", None, "there are no Java classes to load"),
    ("pipeline.jars", None, "connectors need no jars"),
    ("pipeline.classpaths", None, "connectors need no jars"),
    ("python.fn-execution.", None, "batches follow headrace.buffer.size and execution.buffer-timeout"),
    ("python.execution-mode", None, "Python runs in Spark's workers"),
    ("execution.target", None, "headrace.spark.master names the cluster"),
    ("execution.attached", None, "execute waits for the job, execute_async does not"),
    ("execution.checkpointing.cleaner.parallel-mode", None, "files are deleted in the background"),
    ("execution.checkpointing.file-merging.", None, "a subtask packs its state into one file for each checkpoint already"),
    ("execution.checkpointing.unaligned.max-subtasks-per-channel-state-file", None, "in-flight data is stored with the state of its subtask"),
    ("execution.checkpointing.unaligned.recover-output-on-downstream.enabled", None, "in-flight data is always restored by its reader"),
    ("execution.checkpointing.unaligned.interruptible-timers.enabled", None, "barriers are handled between two batches of timers"),
    ("execution.checkpointing.during-recovery.enabled", None, "checkpoints are always taken while in-flight data is restored"),
    ("execution.checkpointing.sync-phase-timeout", ("0", "0 ms", "0 s"), "execution.checkpointing.timeout limits a checkpoint as a whole"),
    ("state.backend.rocksdb.", None, "RocksDB's other options are fixed; state.backend.rocksdb.memory.fixed-per-slot and headrace.rocksdb.cache-size set its memory"),
    ("state.backend.changelog.", None, "execution.checkpointing.incremental makes checkpoints short"),
    ("state.changelog.enabled", None, "execution.checkpointing.incremental makes checkpoints short"),
    ("state.changelog.", None, "there is no changelog"),
    ("pipeline.closure-cleaner-level", None, "there are no Java closures"),
    ("pipeline.force-", None, "there are no Java serializers"),
    ("pipeline.generic-types", None, "there are no Java serializers"),
    ("pipeline.serialization-config", None, "there are no Java serializers"),
    ("pipeline.registered-", None, "there are no Java serializers"),
    ("pipeline.default-kryo-serializers", None, "there are no Java serializers"),
    ("pipeline.cached-files", None, "functions find the files of env.add_python_archive(path) in their working directory"),
    ("pipeline.vertex-", None, "vertices are named after their operators"),
    ("pipeline.operator-chaining.chain-operators-with-different-max-parallelism", None, "chained operators have one max parallelism"),
    ("pipeline.watermark-alignment.allow-unaligned-source-splits", None, "splits of a source are aligned together"),
    ("pipeline.task-name-length", None, "names are not cut"),
    ("task.cancellation.", None, "a task that does not end in time is killed by its own timer"),
    ("execution.batch", None, "the records of a bounded job stream"),
    ("execution.shuffle-mode", None, "Spark's pipelined shuffle joins all stages"),
    ("execution.sorted-inputs.", None, "inputs are not sorted"),
    ("execution.submit-failed-job-on-application-error", None, "the program runs in the driver"),
    ("execution.shutdown-on-", None, "the program runs in the driver"),
    ("execution.checkpointing.snapshot-compression", None, "snapshots are as large as their Arrow columns"),
    ("pekko.", None, "the control service is not Pekko"),
    ("akka.", None, "the control service is not Akka"),
    ("parallelism.default-local", None, "parallelism.default is for local runs, too"),
    ("python.executable", (), "use spark.pyspark.python"),
    ("python.client.executable", (), "use spark.pyspark.driver.python"),
    ("python.", None, "Python runs in Spark's workers"),
    ("pipeline.sources.pause-until-first-checkpoint", ("false",), "sources are not held back"),
    ("table.", (), "there is no Table API; use Spark's DataFrames"),
    ("security.", (), "headrace.rest.token-file and headrace.rest.tls.* protect REST; the control service is secured by itself"),
    ("s3.", (), "credentials and endpoints come from AWS's environment variables and files; see docs/storage.md"),
)  # fmt: skip


# --- Text <-> value ---------------------------------------------------------------------------------------------------

_QUANTITY: Final = re.compile(r"([+-]?\d{1,18})\s*([^\d\s]*)")
_MICROSECONDS: Final[dict[str, int]] = {
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000 * SECOND),
    **dict.fromkeys(("min", "m", "minute", "minutes"), 1000 * MINUTE),
    **dict.fromkeys(("h", "hour", "hours"), 1000 * HOUR),
    **dict.fromkeys(("d", "day", "days"), 1000 * DAY),
}
_BYTES: Final[dict[str, int]] = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kibibytes"), KB),
    **dict.fromkeys(("m", "mb", "mebibytes"), MB),
    **dict.fromkeys(("g", "gb", "gibibytes"), 1024 * MB),
    **dict.fromkeys(("t", "tb", "tebibytes"), 1024 * 1024 * MB),
}
_EXPECTED: Final[dict[OptionKind, tuple[str, str]]] = {
    OptionKind.BOOL: ("true or false", "true"),
    OptionKind.INT: ("a whole number", "4"),
    OptionKind.FLOAT: ("a number", "1.5"),
    OptionKind.STRING: ("a non-empty text", "name"),
    OptionKind.DURATION: ("a duration of whole milliseconds (ms, s, min, h, d)", "10 s"),
    OptionKind.MEMORY: ("a memory size (b, kb, mb, gb, tb)", "64 mb"),
}


def default_text(option: Option[Any]) -> str:
    """The default as a user would write it; "(none)" where there is none."""
    return "(none)" if option.default is None else format_value(option, option.default)


def read_map(text: str | None) -> dict[str, str]:
    """Read pairs as Flink writes them.

    >>> read_map("city:Basel, place:'a:b'")
    {'city': 'Basel', 'place': 'a:b'}
    """
    pairs = (part.partition(":") for part in re.findall(r"(?:[^,'\"]|'[^']*'|\"[^\"]*\")+", text or ""))
    return {key.strip().strip("'\""): value.strip().strip("'\"") for key, _, value in pairs}


def write_map(pairs: Mapping[str, str]) -> str:
    """Write pairs so that `read_map` reads them."""
    quoted = {key: f"'{value}'" if re.search("[,:]", value) else value for key, value in pairs.items()}
    return ",".join(f"{key}:{value}" for key, value in quoted.items())


def parse_value(option: Option[Any], value: object) -> Value:
    """Read `value`, a text or a Python value, as `option` wants it.

    >>> parse_value(CHECKPOINT_TIMEOUT, "10 min"), parse_value(BUFFER_SIZE, "64kb")
    (600000, 65536)
    """
    parsed = _read(option, value.strip() if isinstance(value, str) else value)
    too_small = option.minimum is not None and not isinstance(parsed, str | None) and parsed < option.minimum
    if parsed is None or too_small:
        raise ConfigError("HR-1001", _bad_value(option, value))
    return parsed


def format_value(option: Option[Any], value: Value) -> str:
    """Write a value as a user would; `parse_value` reads it back.

    >>> format_value(CHECKPOINT_TIMEOUT, 600_000), format_value(BUFFER_SIZE, 65536), format_value(CHAINING, True)
    ('10 min', '64 kb', 'true')
    """
    if option.kind is OptionKind.DURATION and isinstance(value, int):
        return _in_largest_unit(value, {"d": DAY, "h": HOUR, "min": MINUTE, "s": SECOND, "ms": 1})
    if option.kind is OptionKind.MEMORY and isinstance(value, int):
        return _in_largest_unit(value, {"gb": 1024 * MB, "mb": MB, "kb": KB, "bytes": 1})
    return _as_text(value)


def _read(option: Option[Any], value: object) -> Value | None:
    """Give the value, or None where it cannot be read as the option's kind."""
    match option.kind:
        case OptionKind.BOOL:
            return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())
        case OptionKind.INT:
            return _read_quantity(value, {"": 1})
        case OptionKind.FLOAT:
            return _read_float(value)
        case OptionKind.STRING:
            return str(os.fspath(value)) if isinstance(value, str | os.PathLike) and value else None
        case OptionKind.DURATION:
            micros = (
                value // timedelta(microseconds=1)
                if isinstance(value, timedelta)
                else _read_quantity(value, _MICROSECONDS)
            )
            # Rounding would turn "500 us" into 0, which often means "never": refuse instead.
            return None if micros is None or micros % 1000 else micros // 1000
        case OptionKind.MEMORY:
            return _read_quantity(value, _BYTES)
        case OptionKind.ENUM:
            return {choice.lower(): choice for choice in option.choices}.get(str(value).lower())


def _read_quantity(value: object, units: Mapping[str, int]) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value * units[""]
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None or (factor := units.get(found[2].lower())) is None:
        return None
    return int(found[1]) * factor


def _read_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _bad_value(option: Option[Any], value: object) -> str:
    if option.kind is OptionKind.ENUM:
        expected, example = f"one of {', '.join(option.choices)}", option.default or option.choices[0]
    else:
        expected, example = _EXPECTED[option.kind]
    if option.minimum is not None:
        expected += f" of at least {format_value(option, option.minimum)}"
    return f"option {option.key!r}: {value!r} is not {expected}; for example {example!r}"


def _in_largest_unit(value: int, units: Mapping[str, int]) -> str:
    unit, factor = next((u, f) for u, f in units.items() if f == 1 or (value and value % f == 0))
    return f"{value // factor} {unit}"


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- The configuration ------------------------------------------------------------------------------------------------

# As Flink's and Spark's own pages hide them; keys of other systems are among the options, as `spark.hadoop.fs.s3a.secret.key`.
_SECRET: Final = re.compile(
    r"password|passwd|secret|token(?!-file)|(access|account|api|service|shared)[.-]?key|auth-params|basic-auth|jaas\.config",
    re.IGNORECASE,
)


class Origin(enum.Enum):
    """The origin of a value, strongest first."""

    CODE = "code"
    COMMAND_LINE = "-D"
    FILE = "headrace.yaml"
    DEFAULT = "default"


Values = Mapping[str, object] | Mapping[Option[Any], object] | Mapping[str | Option[Any], object]


class Configuration:
    """Values of options, each with its origin; PyFlink's methods are here beside the typed `get`.

    >>> config = Configuration().set("parallelism.default", "4")
    >>> config.get(PARALLELISM), config.origin(PARALLELISM), config.get(BUFFER_TIMEOUT)
    (4, <Origin.CODE: 'code'>, 100)
    """

    def __init__(self, other: Configuration | Values | None = None) -> None:
        self._layers: dict[Origin, dict[str, Value]] = {o: {} for o in Origin if o is not Origin.DEFAULT}
        if isinstance(other, Configuration):
            self.add_all(other)
        elif other is not None:
            for key, value in other.items():
                self.set(key, value)

    def set(self, key: str | Option[Any], value: object, origin: Origin = Origin.CODE) -> Self:
        """Set a key; the value may be a Python value or a text. Returns the configuration itself, for chaining.

        >>> Configuration().set("execution.checkpointing.interval", "10 s").to_dict()
        {'execution.checkpointing.interval': '10 s'}
        """
        name = current_key(key)
        option = OPTIONS.get(name)
        self._layers[origin][name] = _as_text(value) if option is None else parse_value(option, value)
        return self

    @overload
    def get(self, key: Option[T]) -> T: ...
    @overload
    def get(self, key: str) -> Any: ...
    def get(self, key: str | Option[Any]) -> Any:
        """The value of an option, or its default; None for any other key that is not set.

        >>> Configuration().get("execution.checkpointing.timeout")
        600000
        """
        value = self._lookup(key)
        option = OPTIONS.get(current_key(key))
        if value is not None or option is None:
            return value
        return option.default if option.fallback is None else self.get(option.fallback)

    def origin(self, key: str | Option[Any]) -> Origin:
        """Return the origin of the value that `get` returns."""
        name = current_key(key)
        return next((origin for origin, layer in self._layers.items() if name in layer), Origin.DEFAULT)

    def check(self) -> list[str]:
        """Refuse keys that are neither options nor known to have no effect; the warnings about the latter.

        >>> Configuration({"taskmanager.numberOfTaskSlots": 4}).check()
        ["option 'taskmanager.numberOfTaskSlots' has no effect: Spark runs the workers; spark.executor.* sizes them"]
        """
        warnings = []
        for key, value in sorted(self.to_dict().items()):
            if key in OPTIONS or key.startswith(("spark.", "user.")):
                continue
            foreign = next(((values, text) for prefix, values, text in _FOREIGN if key.startswith(prefix)), None)
            if foreign is None:
                raise ConfigError("HR-1002", self._unknown(key))
            harmless, text = foreign
            if harmless is not None and value.lower() not in harmless:
                raise ConfigError("HR-1002", f"option {key!r} with the value {value!r} is not supported: {text}")
            warnings.append(f"option {key!r} has no effect: {text}")
        return warnings

    def _unknown(self, key: str) -> str:
        close = difflib.get_close_matches(key, [*OPTIONS, *CURRENT_KEY], n=1)
        hint = f"; did you mean {CURRENT_KEY.get(close[0], close[0])!r}?" if close else ";"
        return (
            f"unknown option {key!r} (from {self.origin(key).value}){hint} `headrace options` lists all options; "
            "keys of your own start with 'user.', keys for Spark with 'spark.'"
        )

    def changed(self) -> Iterator[tuple[str, str, Origin]]:
        """Key, value as text and origin of everything that is set and differs from its default, in key order.

        >>> list(Configuration({"parallelism.default": 2, "pipeline.object-reuse": False}).changed())
        [('parallelism.default', '2', <Origin.CODE: 'code'>)]
        """
        for key, text in sorted(self._shown().items()):
            if key not in OPTIONS or self.get(key) != OPTIONS[key].default:
                yield key, text, self.origin(key)

    def spark_options(self) -> dict[str, str]:
        """The values whose keys start with `spark.`."""
        return {key: text for key, text in self.to_dict().items() if key.startswith("spark.")}

    # PyFlink's spelling. A getter returns `default_value` when the key is not set, whatever the option's own default is.

    set_string = set_integer = set_boolean = set_float = set  # noqa: A003 - the method above

    def get_string(self, key: str, default_value: str) -> str:
        """The value as text, with a unit where the option has one."""
        return self.to_dict().get(current_key(key), default_value)

    def get_integer(self, key: str, default_value: int) -> int:
        """The value as int: milliseconds of a duration, bytes of a memory size."""
        return self._as(OptionKind.INT, key, default_value)

    def get_boolean(self, key: str, default_value: bool) -> bool:
        """The value as bool."""
        return self._as(OptionKind.BOOL, key, default_value)

    def get_float(self, key: str, default_value: float) -> float:
        """The value as float."""
        return self._as(OptionKind.FLOAT, key, default_value)

    def _as(self, kind: OptionKind, key: str, default_value: T) -> T:
        value = self._lookup(key)
        return default_value if value is None else parse_value(Option(key, kind, default_value, ""), value)  # type: ignore[return-value]

    def contains_key(self, key: str) -> bool:
        """Return True if the key is set anywhere."""
        return self._lookup(key) is not None

    def key_set(self) -> AbstractSet[str]:
        """The keys that are set."""
        return self.to_dict().keys()

    def remove_config(self, key: str | Option[Any]) -> bool:
        """Remove what code has set, so that -D and headrace.yaml apply again; whether there was something."""
        return self._layers[Origin.CODE].pop(current_key(key), None) is not None

    def add_all(self, other: Configuration, prefix: str = "") -> Self:
        """Copy every value of `other` with its origin; `prefix` goes before each key."""
        for origin, layer in other._layers.items():
            for key, value in layer.items():
                self.set(prefix + key, value, origin)
        return self

    def to_dict(self) -> dict[str, str]:
        """All values that are set, as text.

        >>> Configuration({"execution.buffer-timeout": 0, "user.city": "Basel"}).to_dict()
        {'execution.buffer-timeout': '0 ms', 'user.city': 'Basel'}
        """
        merged: dict[str, Value] = {}
        for layer in reversed(self._layers.values()):
            merged.update(layer)
        return {k: format_value(OPTIONS[k], v) if k in OPTIONS else str(v) for k, v in merged.items()}

    def _shown(self) -> dict[str, str]:
        return {key: "(hidden)" if _SECRET.search(key) else text for key, text in self.to_dict().items()}

    def _lookup(self, key: str | Option[Any]) -> Value | None:
        name = current_key(key)
        return next((layer[name] for layer in self._layers.values() if name in layer), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._layers == other._layers

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Configuration({self._shown()!r})"


def current_key(key: str | Option[Any]) -> str:
    """The key of an option; an older key becomes the present one."""
    return key.key if isinstance(key, Option) else CURRENT_KEY.get(key, key)


# --- headrace.yaml, -D and the process --------------------------------------------------------------------------------


def from_assignments(assignments: list[str]) -> Configuration:
    """Read the `key=value` texts of the command line.

    >>> from_assignments(["parallelism.default=4"]).origin(PARALLELISM)
    <Origin.COMMAND_LINE: '-D'>
    """
    configuration = Configuration()
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError("HR-1003", f"-D {text}: expected key=value, for example -D parallelism.default=4")
        if key.strip() == REST_TOKEN.key:
            raise ConfigError(
                "HR-1004",
                f"-D {REST_TOKEN.key}: every user of the machine sees the arguments of a command; set {REST_TOKEN_FILE.key}, or "
                "HEADRACE_REST_TOKEN in the environment",
            )
        configuration.set(key.strip(), value.strip(), Origin.COMMAND_LINE)
    return configuration


def from_file(path: str | Path) -> Configuration:
    """Read a `headrace.yaml`: flat keys (`parallelism.default: 4`) or nested ones, as in Flink's config.yaml."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        # BaseLoader keeps every value a text: `off` stays "off", `0123` stays "0123". The options know their kinds.
        tree = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506
    except OSError as error:
        raise ConfigError("HR-1005", f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError("HR-1005", f"{path} is not valid YAML: {error}") from error
    configuration = Configuration()
    try:
        for key, value in _flatten(tree or {}):
            configuration.set(key, value, Origin.FILE)
    except ConfigError as error:
        raise ConfigError("HR-1005", f"{path}: {error.text}") from error
    return configuration


def _flatten(tree: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix and isinstance(tree, str):
        yield prefix, tree
    else:
        where = f"option {prefix!r}" if prefix else "the file"
        raise ConfigError(
            "HR-1005", f"{where} holds a list or bare value; expected lines like 'parallelism.default: 4'"
        )


_process_defaults = Configuration()


def set_process_defaults(configuration: Configuration) -> None:
    """Make `configuration` the start of every environment of this process; `headrace run` does so."""
    global _process_defaults  # noqa: PLW0603  (one per process is the meaning of it)
    _process_defaults = Configuration(configuration)


def process_defaults() -> Configuration:
    """Give a copy of what `set_process_defaults` was given; empty if it was not called.

    >>> set_process_defaults(from_assignments(["parallelism.default=4"]))
    >>> process_defaults().get(PARALLELISM)
    4
    >>> set_process_defaults(Configuration())
    """
    return Configuration(_process_defaults)
