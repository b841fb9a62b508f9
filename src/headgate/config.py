"""Every option of Headgate in one table, and the configuration that holds their values.

An option is found under Flink's key where Flink has it; keys of our own start with `headgate.`. A value comes from one
of four places, the first that has it wins:

    code (env or Configuration)  >  -D key=value  >  headgate.yaml  >  default

Durations are whole milliseconds and memory sizes are bytes once they are read; in text they carry a unit ("10 min",
"256 kb"). Keys that start with `spark.` go to Spark as they are, keys that start with `user.` belong to the program.
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
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, overload

from headgate.errors import ConfigError

T = TypeVar("T")
Value = bool | int | float | str

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_KB: Final = 1024
_MB: Final = 1024 * _KB


class Kind(enum.Enum):
    """How the text of an option is read; the value is the word the documentation uses."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STRING = "string"
    DURATION = "duration"
    MEMORY = "memory"
    ENUM = "enum"


class Origin(enum.Enum):
    """Where a value came from, strongest first."""

    CODE = "code"
    COMMAND_LINE = "-D"
    FILE = "headgate.yaml"
    DEFAULT = "default"


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

    @property
    def default_text(self) -> str:
        """The default as a user would write it; "(none)" where there is none."""
        default: Any = self.default
        return "(none)" if default is None else format_value(self, default)


OPTIONS: Final[dict[str, Option[Any]]] = {}
_CURRENT_KEY: Final[dict[str, str]] = {}  # older key -> key


def _add(option: Option[T]) -> Option[T]:
    for key in (option.key, *option.older_keys):
        assert key not in OPTIONS, key
        assert key not in _CURRENT_KEY, key
    OPTIONS[option.key] = option
    _CURRENT_KEY.update(dict.fromkeys(option.older_keys, option.key))
    return option


def _flag(key: str, doc: str, *older_keys: str, default: bool = False) -> Option[bool]:
    return _add(Option(key, Kind.BOOL, default, doc, older_keys))


def _count(key: str, default: int, doc: str, *older_keys: str, minimum: int = 0) -> Option[int]:
    return _add(Option(key, Kind.INT, default, doc, older_keys, minimum=minimum))


def _duration(key: str, default: int, doc: str, *older_keys: str, minimum: int = 0) -> Option[int]:
    return _add(Option(key, Kind.DURATION, default, doc, older_keys, minimum=minimum))


def _interval(key: str, doc: str) -> Option[int | None]:
    return _add(Option[int | None](key, Kind.DURATION, None, doc, minimum=1))


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
BUFFER_SIZE = _memory("headgate.buffer.size", 256 * _KB, "A buffer leaves when it holds this much.", minimum=1)
INPUT_QUEUE_SIZE = _memory("headgate.input.queue-size", 8 * _MB, "Input a subtask reads ahead before it holds its writers back.", minimum=1)
SLICE_TARGET = _duration("headgate.slice.target", 10, "A subtask turns to timers and control messages at least this often.", minimum=1)
CONTROL_HOST = _text("headgate.control.host", "Address that workers use to reach the driver; unset: loopback for local masters, else spark.driver.host.")
CONTROL_PORT = _count("headgate.control.port", 0, "Port of the driver's control service; 0 takes any free one.")
CONTROL_TIMEOUT = _duration("headgate.control.timeout", 20 * _SECOND, "A worker that has not heard from the driver for so long stops itself.", minimum=1)
SLOTS_TIMEOUT = _duration("headgate.slots.timeout", 30 * _SECOND, "How long a job waits for enough free Spark slots before it fails.")
RESERVED_SLOTS = _count("headgate.spark.reserved-slots", 0, "Spark slots that the job must leave free for other jobs of the session.")
SPARK_MASTER = _text("headgate.spark.master", "Spark master for a session that Headgate starts itself, for example local[4].")
PRINT_MAX_LINES = _count("headgate.print.max-lines-per-second", 10_000, "print() drops lines beyond this rate per job and says how many.", minimum=1)
COLLECT_MAX_UNCONFIRMED = _count("headgate.collect.max-unconfirmed", 64, "Batches of collected results on their way to the driver, per subtask.", minimum=1)

# --- Restart ----------------------------------------------------------------------------------------------------------
RESTART_TYPE = _choice_or_none("restart-strategy.type", "none|disable|off|fixed-delay|exponential-delay|failure-rate", "What to do when the job fails; unset: none without checkpointing, exponential-delay with it.", "restart-strategy")
FIXED_DELAY_ATTEMPTS = _count("restart-strategy.fixed-delay.attempts", 1, "Restarts before the job is given up.")
FIXED_DELAY_DELAY = _duration("restart-strategy.fixed-delay.delay", 1 * _SECOND, "Pause before each restart.")
EXPONENTIAL_INITIAL_BACKOFF = _duration("restart-strategy.exponential-delay.initial-backoff", 1 * _SECOND, "Pause before the first restart.", minimum=1)
EXPONENTIAL_MAX_BACKOFF = _duration("restart-strategy.exponential-delay.max-backoff", 1 * _MINUTE, "Longest pause before a restart.", minimum=1)
EXPONENTIAL_MULTIPLIER = _add(Option("restart-strategy.exponential-delay.backoff-multiplier", Kind.FLOAT, 1.5, "The pause grows by this factor with each failure; must be greater than 1.", minimum=1))
EXPONENTIAL_RESET_THRESHOLD = _duration("restart-strategy.exponential-delay.reset-backoff-threshold", 1 * _HOUR, "The pause is reset after the job ran this long without a failure.", minimum=1)
EXPONENTIAL_JITTER = _add(Option("restart-strategy.exponential-delay.jitter-factor", Kind.FLOAT, 0.1, "Random part of the pause, 0 to 1, so that jobs do not restart in step.", minimum=0))
EXPONENTIAL_ATTEMPTS = _add(Option[int | None]("restart-strategy.exponential-delay.attempts-before-reset-backoff", Kind.INT, None, "Restarts before the job is given up, counted from the last reset; unset: no limit.", minimum=1))
FAILURE_RATE_MAX_FAILURES = _count("restart-strategy.failure-rate.max-failures-per-interval", 1, "Failures within the interval that are still followed by a restart.", minimum=1)
FAILURE_RATE_INTERVAL = _duration("restart-strategy.failure-rate.failure-rate-interval", 1 * _MINUTE, "Length of the interval.", minimum=1)
FAILURE_RATE_DELAY = _duration("restart-strategy.failure-rate.delay", 1 * _SECOND, "Pause before each restart.")

# --- Checkpoints ------------------------------------------------------------------------------------------------------
CHECKPOINT_INTERVAL = _interval("execution.checkpointing.interval", "Time between two checkpoints; unset: no periodic checkpoints.")
CHECKPOINT_INTERVAL_BACKLOG = _interval("execution.checkpointing.interval-during-backlog", "Interval while a source works off a backlog; unset: the interval above.")
CHECKPOINT_MODE = _choice("execution.checkpointing.mode", "EXACTLY_ONCE", "EXACTLY_ONCE|AT_LEAST_ONCE", "Whether barriers are aligned (exactly once) or only counted.")
CHECKPOINT_TIMEOUT = _duration("execution.checkpointing.timeout", 10 * _MINUTE, "A checkpoint that takes longer is aborted.", minimum=1)
CHECKPOINT_MIN_PAUSE = _duration("execution.checkpointing.min-pause", 0, "Time between the end of one checkpoint and the start of the next.")
CHECKPOINT_MAX_CONCURRENT = _count("execution.checkpointing.max-concurrent-checkpoints", 1, "Checkpoints under way at the same time.", minimum=1)
CHECKPOINT_TOLERABLE_FAILURES = _count("execution.checkpointing.tolerable-failed-checkpoints", 0, "Checkpoints that may fail in a row before the job does.")
CHECKPOINT_RETENTION = _choice("execution.checkpointing.externalized-checkpoint-retention", "NO_EXTERNALIZED_CHECKPOINTS", "NO_EXTERNALIZED_CHECKPOINTS|RETAIN_ON_CANCELLATION|DELETE_ON_CANCELLATION", "Whether checkpoints outlive the job.")
CHECKPOINT_NUM_RETAINED = _count("execution.checkpointing.num-retained", 1, "Completed checkpoints to keep.", "state.checkpoints.num-retained", minimum=1)
CHECKPOINT_STORAGE = _choice_or_none("execution.checkpointing.storage", "jobmanager|filesystem", "Where checkpoints live: in the driver or in files; unset: files if a directory is set.", "state.checkpoint-storage")
CHECKPOINT_DIR = _text("execution.checkpointing.dir", "Directory (any fsspec URL) for checkpoints.", "state.checkpoints.dir")
SAVEPOINT_DIR = _text("execution.checkpointing.savepoint-dir", "Default directory for savepoints.", "state.savepoints.dir")
CHECKPOINT_CREATE_SUBDIR = _flag("execution.checkpointing.create-subdir", "Give each job its own directory below the checkpoint directory.", "state.checkpoints.create-subdir", default=True)
CHECKPOINT_INLINE_THRESHOLD = _memory("execution.checkpointing.data-inline-threshold", 20 * _KB, "State smaller than this is stored inside the metadata.", "state.storage.fs.memory-threshold")
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
FILE_MERGING_MAX_SIZE = _memory("execution.checkpointing.file-merging.max-file-size", 32 * _MB, "A merged file is closed at this size.", minimum=1)
FILE_MERGING_AMPLIFICATION = _add(Option("execution.checkpointing.file-merging.max-space-amplification", Kind.FLOAT, 2.0, "Rewrite merged files when dead space exceeds this factor.", minimum=1))
LOCAL_BACKUP = _flag("execution.checkpointing.local-backup.enabled", "Keep a copy of the newest state on the worker.")
LOCAL_BACKUP_DIRS = _text("execution.checkpointing.local-backup.dirs", "Directories for local copies, separated by commas.", "taskmanager.state.local.root-dirs")

# --- Recovery ---------------------------------------------------------------------------------------------------------
RECOVERY_FROM_LOCAL = _flag("execution.state-recovery.from-local", "Restore from local copies where they are still there.", "state.backend.local-recovery")
RECOVERY_PATH = _text("execution.state-recovery.path", "Checkpoint or savepoint to start from.", "execution.savepoint.path")
RECOVERY_CLAIM_MODE = _choice("execution.state-recovery.claim-mode", "NO_CLAIM", "NO_CLAIM|CLAIM|LEGACY", "Who owns the files of the snapshot the job starts from.", "execution.savepoint-restore-mode")
RECOVERY_IGNORE_UNCLAIMED = _flag("execution.state-recovery.ignore-unclaimed-state", "Drop state that belongs to no operator of the program.", "execution.savepoint.ignore-unclaimed-state")
RECOVERY_WITHOUT_CHANNEL_STATE = _count("execution.state-recovery.without-channel-state.checkpoint-id", -1, "Ignore the in-flight data of this checkpoint (loses data); -1 of none.", "execution.checkpointing.recover-without-channel-state.checkpoint-id", minimum=-1)

# --- State ------------------------------------------------------------------------------------------------------------
STATE_BACKEND = _choice("state.backend.type", "hashmap", "hashmap|rocksdb", "Where keyed state lives while the job runs.", "state.backend")
ROCKSDB_TRANSFER_THREADS = _count("state.backend.rocksdb.checkpoint.transfer.thread.num", 4, "Threads that copy files to and from checkpoints.", minimum=1)
ROCKSDB_TIMER_SERVICE = _choice("state.backend.rocksdb.timer-service.factory", "ROCKSDB", "ROCKSDB|HEAP", "Where timers live with the rocksdb backend.")
ROCKSDB_TTL_QUERY_ENTRIES = _count("state.backend.rocksdb.compaction.filter.query-time-after-num-entries", 1000, "Expiry looks at the clock once per this many entries.", minimum=1)
ROCKSDB_TTL_COMPACTION = _duration("state.backend.rocksdb.compaction.filter.periodic-compaction-time", 30 * _DAY, "Files older than this are cleaned of expired state; 0 never.")
CHANGELOG = _flag("state.changelog.enabled", "Write every state change to a log besides the checkpoints.")
CHANGELOG_STORAGE = _add(Option("state.changelog.storage", Kind.STRING, "memory", "Where that log lives."))
CHANGELOG_MATERIALIZE = _duration("state.changelog.periodic-materialize.interval", 10 * _MINUTE, "How often the log is folded into a snapshot.", minimum=1)
CHANGELOG_MAX_FAILURES = _count("state.changelog.max-failures-allowed", 3, "Snapshots of the log that may fail in a row.")

# --- Output and operations --------------------------------------------------------------------------------------------
COMMITTER_RETRIES = _count("sink.committer.retries", 10, "Times a sink's commit is tried again before the job fails.")
CHECKPOINT_HISTORY = _count("web.checkpoints.history", 10, "Checkpoints that REST and dashboard remember.")
ASYNC_STORE_DURATION = _duration("rest.async.store-duration", 5 * _MINUTE, "How long the result of a triggered operation can be asked for.")
# fmt: on


# --- Text <-> value ---------------------------------------------------------------------------------------------------

_QUANTITY: Final = re.compile(r"([+-]?\d{1,18})\s*([^\d\s]*)")
_MICROSECONDS: Final[dict[str, int]] = {
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000 * _SECOND),
    **dict.fromkeys(("min", "m", "minute", "minutes"), 1000 * _MINUTE),
    **dict.fromkeys(("h", "hour", "hours"), 1000 * _HOUR),
    **dict.fromkeys(("d", "day", "days"), 1000 * _DAY),
}
_BYTES: Final[dict[str, int]] = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kibibytes"), _KB),
    **dict.fromkeys(("m", "mb", "mebibytes"), _MB),
    **dict.fromkeys(("g", "gb", "gibibytes"), 1024 * _MB),
    **dict.fromkeys(("t", "tb", "tebibytes"), 1024 * 1024 * _MB),
}
_EXPECTED: Final[dict[Kind, tuple[str, str]]] = {
    Kind.BOOL: ("true or false", "true"),
    Kind.INT: ("a whole number", "4"),
    Kind.FLOAT: ("a number", "1.5"),
    Kind.STRING: ("a non-empty text", "name"),
    Kind.DURATION: ("a duration of whole milliseconds (ms, s, min, h, d)", "10 s"),
    Kind.MEMORY: ("a memory size (b, kb, mb, gb, tb)", "64 mb"),
}


def parse_value(option: Option[Any], value: object) -> Value:
    """Read `value`, a text or a Python value, as `option` wants it.

    >>> parse_value(CHECKPOINT_TIMEOUT, "10 min"), parse_value(BUFFER_SIZE, "64kb")
    (600000, 65536)
    """
    parsed = _read(option, value.strip() if isinstance(value, str) else value)
    too_small = option.minimum is not None and not isinstance(parsed, str | None) and parsed < option.minimum
    if parsed is None or too_small:
        raise ConfigError(_bad_value(option, value))
    return parsed


def format_value(option: Option[Any], value: Value) -> str:
    """Write a value as a user would; `parse_value` reads it back.

    >>> format_value(CHECKPOINT_TIMEOUT, 600_000), format_value(BUFFER_SIZE, 65536), format_value(CHAINING, True)
    ('10 min', '64 kb', 'true')
    """
    if option.kind is Kind.DURATION and isinstance(value, int):
        return _in_largest_unit(value, {"d": _DAY, "h": _HOUR, "min": _MINUTE, "s": _SECOND, "ms": 1})
    if option.kind is Kind.MEMORY and isinstance(value, int):
        return _in_largest_unit(value, {"gb": 1024 * _MB, "mb": _MB, "kb": _KB, "bytes": 1})
    return _as_text(value)


def _read(option: Option[Any], value: object) -> Value | None:
    """Give the value, or None where it cannot be read as the option's kind."""
    match option.kind:
        case Kind.BOOL:
            return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())
        case Kind.INT:
            return _read_quantity(value, {"": 1})
        case Kind.FLOAT:
            return _read_float(value)
        case Kind.STRING:
            return str(os.fspath(value)) if isinstance(value, str | os.PathLike) and value else None
        case Kind.DURATION:
            micros = (
                value // timedelta(microseconds=1)
                if isinstance(value, timedelta)
                else _read_quantity(value, _MICROSECONDS)
            )
            # Rounding would turn "500 us" into 0, which often means "never": refuse instead.
            return None if micros is None or micros % 1000 else micros // 1000
        case Kind.MEMORY:
            return _read_quantity(value, _BYTES)
        case Kind.ENUM:
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
    if option.kind is Kind.ENUM:
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


def _is_free(key: str) -> bool:
    return key.startswith(("spark.", "user."))


def find_option(key: str) -> Option[Any]:
    """Give the option of this key or older key; an unknown key is an error that names the closest one.

    >>> find_option("state.checkpoints.dir").key
    'execution.checkpointing.dir'
    """
    option = OPTIONS.get(_CURRENT_KEY.get(key, key))
    if option is not None:
        return option
    close = difflib.get_close_matches(key, [*OPTIONS, *_CURRENT_KEY], n=1)
    hint = f"; did you mean {_CURRENT_KEY.get(close[0], close[0])!r}?" if close else ";"
    raise ConfigError(
        f"unknown option {key!r}{hint} `headgate options` lists all options; "
        "keys of your own start with 'user.', keys for Spark with 'spark.'"
    )


# --- The configuration ------------------------------------------------------------------------------------------------


class Configuration:
    """Values of options, each with the place it came from. PyFlink's methods are here beside the typed `get`.

    >>> config = Configuration().set("parallelism.default", "4")
    >>> config.get(PARALLELISM), config.origin(PARALLELISM), config.get(BUFFER_TIMEOUT)
    (4, <Origin.CODE: 'code'>, 100)
    """

    def __init__(self, other: Configuration | Mapping[str, object] | None = None) -> None:
        self._layers: dict[Origin, dict[str, Value]] = {o: {} for o in Origin if o is not Origin.DEFAULT}
        if isinstance(other, Configuration):
            self.add_all(other)
        elif other is not None:
            for key, value in other.items():
                self.set(key, value)

    def set(self, key: str | Option[Any], value: object, origin: Origin = Origin.CODE) -> Configuration:
        """Set an option; the value may be a Python value or a text. Gives itself, for chaining.

        >>> Configuration().set("execution.checkpointing.interval", "10 s").to_dict()
        {'execution.checkpointing.interval': '10 s'}
        """
        name = key.key if isinstance(key, Option) else key
        if _is_free(name):
            self._layers[origin][name] = _as_text(value)
        else:
            option = find_option(name)
            self._layers[origin][option.key] = parse_value(option, value)
        return self

    @overload
    def get(self, key: Option[T]) -> T: ...
    @overload
    def get(self, key: str) -> Any: ...
    def get(self, key: str | Option[Any]) -> Any:
        """Give the value of an option, or its default; None for a `spark.` or `user.` key that is not set.

        >>> Configuration().get("execution.checkpointing.timeout")
        600000
        """
        name = key.key if isinstance(key, Option) else key
        value = self._lookup(name)
        return value if value is not None or _is_free(name) else find_option(name).default

    def origin(self, key: str | Option[Any]) -> Origin:
        """Tell where the value that `get` gives came from.

        >>> Configuration().origin("parallelism.default")
        <Origin.DEFAULT: 'default'>
        """
        name = self._name(key.key if isinstance(key, Option) else key)
        return next((origin for origin, layer in self._layers.items() if name in layer), Origin.DEFAULT)

    def changed(self) -> Iterator[tuple[str, str, Origin]]:
        """Give key, value as text and origin of everything that is set and differs from its default, in key order.

        >>> list(Configuration({"parallelism.default": 2, "pipeline.object-reuse": False}).changed())
        [('parallelism.default', '2', <Origin.CODE: 'code'>)]
        """
        for key, text in sorted(self.to_dict().items()):
            if _is_free(key) or self.get(key) != OPTIONS[key].default:
                yield key, text, self.origin(key)

    def spark_options(self) -> dict[str, str]:
        """Give the options that belong to Spark.

        >>> Configuration({"spark.executor.memory": "4g", "user.city": "Basel"}).spark_options()
        {'spark.executor.memory': '4g'}
        """
        return {key: text for key, text in self.to_dict().items() if key.startswith("spark.")}

    # PyFlink's spelling. `default_value` is given when the key is not set, whatever the option's own default is.

    def set_string(self, key: str, value: str) -> Configuration:
        """Set an option from text, as `set` does."""
        return self.set(key, value)

    def set_integer(self, key: str, value: int) -> Configuration:
        """Set an option from an int, as `set` does."""
        return self.set(key, value)

    def set_boolean(self, key: str, value: bool) -> Configuration:
        """Set an option from a bool, as `set` does."""
        return self.set(key, value)

    def set_float(self, key: str, value: float) -> Configuration:
        """Set an option from a float, as `set` does."""
        return self.set(key, value)

    def get_string(self, key: str, default_value: str) -> str:
        """Give the value as text.

        >>> Configuration({"headgate.buffer.size": 65536}).get_string("headgate.buffer.size", "")
        '64 kb'
        """
        return self.to_dict().get(self._name(key), default_value)

    def get_integer(self, key: str, default_value: int) -> int:
        """Give the value as int: milliseconds of a duration, bytes of a memory size."""
        value = self._lookup(key)
        return default_value if value is None else int(parse_value(Option(key, Kind.INT, 0, ""), value))

    def get_boolean(self, key: str, default_value: bool) -> bool:
        """Give the value as bool."""
        value = self._lookup(key)
        return default_value if value is None else bool(parse_value(Option(key, Kind.BOOL, default_value, ""), value))

    def get_float(self, key: str, default_value: float) -> float:
        """Give the value as float."""
        value = self._lookup(key)
        return default_value if value is None else float(parse_value(Option(key, Kind.FLOAT, 0.0, ""), value))

    def contains_key(self, key: str) -> bool:
        """Tell whether the key is set anywhere; a key that is not known is simply not set."""
        name = _CURRENT_KEY.get(key, key)
        return any(name in layer for layer in self._layers.values())

    def key_set(self) -> AbstractSet[str]:
        """Give the keys that are set."""
        return self.to_dict().keys()

    def remove_config(self, key: str) -> bool:
        """Take back what code has set; what -D or headgate.yaml say shows again. True if there was something."""
        return self._layers[Origin.CODE].pop(self._name(key), None) is not None

    def add_all(self, other: Configuration, prefix: str = "") -> Configuration:
        """Take over every value of `other`, each into the layer it has there; `prefix` goes before each key."""
        for origin, layer in other._layers.items():
            for key, value in layer.items():
                self.set(prefix + key, value, origin)
        return self

    def to_dict(self) -> dict[str, str]:
        """Give what is set as text, strongest layer first applied.

        >>> Configuration({"execution.buffer-timeout": 0, "user.city": "Basel"}).to_dict()
        {'execution.buffer-timeout': '0 ms', 'user.city': 'Basel'}
        """
        merged: dict[str, Value] = {}
        for layer in reversed(self._layers.values()):
            merged.update(layer)
        return {k: str(v) if _is_free(k) else format_value(OPTIONS[k], v) for k, v in merged.items()}

    def _name(self, key: str) -> str:
        return key if _is_free(key) else find_option(key).key

    def _lookup(self, key: str) -> Value | None:
        name = self._name(key)
        return next((layer[name] for layer in self._layers.values() if name in layer), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._layers == other._layers

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Configuration({self.to_dict()!r})"


# --- headgate.yaml, -D and the process --------------------------------------------------------------------------------


def from_assignments(assignments: list[str]) -> Configuration:
    """Read the `key=value` texts of the command line.

    >>> from_assignments(["parallelism.default=4"]).origin(PARALLELISM)
    <Origin.COMMAND_LINE: '-D'>
    """
    configuration = Configuration()
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"-D {text}: expected key=value, for example -D parallelism.default=4")
        configuration.set(key.strip(), value.strip(), Origin.COMMAND_LINE)
    return configuration


def from_file(path: str | Path) -> Configuration:
    """Read a `headgate.yaml`: flat keys (`parallelism.default: 4`) or nested ones, as in Flink's config.yaml."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        # BaseLoader keeps every value a text: `off` stays "off", `0123` stays "0123". The options know their kinds.
        tree = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    configuration = Configuration()
    try:
        for key, value in _flatten(tree or {}):
            configuration.set(key, value, Origin.FILE)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return configuration


def _flatten(tree: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix and isinstance(tree, str):
        yield prefix, tree
    else:
        where = f"option {prefix!r}" if prefix else "the file"
        raise ConfigError(f"{where} holds a list or bare value; expected lines like 'parallelism.default: 4'")


_process_defaults = Configuration()


def set_process_defaults(configuration: Configuration) -> None:
    """Make `configuration` the start of every environment of this process; `headgate run` does so."""
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
