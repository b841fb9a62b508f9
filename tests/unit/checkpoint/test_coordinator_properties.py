"""SPEC R5.2, R5.4 and section 11: properties, retention and settings."""

import pytest

from headrace.checkpoint.settings import (
    CheckpointProperties,
    CheckpointSettings,
    ClaimMode,
    EndStatus,
    FullCheckpointPolicy,
    RetentionPolicy,
)
from headrace.checkpoint.types import SavepointFormat, SnapshotType
from headrace.config import Configuration
from headrace.errors import ConfigError, InvalidArgument

NEVER, ON_FAILURE, ON_CANCEL = RetentionPolicy


def flags(p):
    return [p.discard_subsumed, *(status in p.discard_at for status in EndStatus)]


# ---- properties ----------------------------------------------------------------------------------------------------

T, F = True, False


@pytest.mark.parametrize(
    ("properties", "force", "discards"),
    [
        (CheckpointProperties.for_checkpoint(NEVER), F, [T, T, T, T, F]),
        (CheckpointProperties.for_checkpoint(ON_FAILURE), F, [T, T, T, F, F]),
        (CheckpointProperties.for_checkpoint(ON_CANCEL), F, [T, T, F, F, F]),
        (CheckpointProperties.for_savepoint(force=True), T, [F, F, F, F, F]),
        (CheckpointProperties.for_stop(force=True, drain=True), T, [F, F, F, F, F]),
        (CheckpointProperties.for_restored(ClaimMode.NO_CLAIM, NEVER), F, [F, F, F, F, F]),
    ],
)
def test_the_table_of_r5_2(properties, force, discards):
    """R5.2, CheckpointPropertiesTest#testCheckpointProperties and #testSavepointProperties."""
    assert properties.force is force
    assert flags(properties) == discards


def test_is_savepoint():
    """R5.2, CheckpointPropertiesTest#testIsSavepoint."""
    checkpoint = CheckpointProperties.for_checkpoint(ON_FAILURE)
    savepoint = CheckpointProperties.for_savepoint(True, SavepointFormat.NATIVE)
    stop = CheckpointProperties.for_stop(False, False)
    assert [p.is_savepoint for p in (checkpoint, savepoint, stop)] == [False, True, True]
    assert [p.is_synchronous for p in (checkpoint, savepoint, stop)] == [False, False, True]
    assert [p.is_plain_savepoint for p in (checkpoint, savepoint, stop)] == [False, True, False]
    assert savepoint.format is SavepointFormat.NATIVE


def test_retention_by_end_status():
    """R5.2: FINISHED keeps none, CANCELED only under RETAIN_ON_CANCELLATION, FAILED under both policies that retain."""
    kept = {
        status: [p for p in RetentionPolicy if status not in CheckpointProperties.for_checkpoint(p).discard_at]
        for status in EndStatus
    }
    assert kept == {
        EndStatus.FINISHED: [],
        EndStatus.CANCELED: [ON_CANCEL],
        EndStatus.FAILED: [ON_FAILURE, ON_CANCEL],
        EndStatus.SUSPENDED: [NEVER, ON_FAILURE, ON_CANCEL],
    }


@pytest.mark.parametrize("status", list(EndStatus))
def test_savepoints_outlive_every_end(status):
    assert status not in CheckpointProperties.for_savepoint(True).discard_at
    assert status not in CheckpointProperties.for_restored(ClaimMode.NO_CLAIM, NEVER).discard_at


@pytest.mark.parametrize(
    ("option", "policy"),
    [
        ("NO_EXTERNALIZED_CHECKPOINTS", NEVER),
        ("DELETE_ON_CANCELLATION", ON_FAILURE),
        ("RETAIN_ON_CANCELLATION", ON_CANCEL),
    ],
)
def test_retention_option(option, policy):
    """R5.2: the config mapping."""
    configuration = Configuration({"execution.checkpointing.externalized-checkpoint-retention": option})
    assert CheckpointSettings.from_configuration(configuration).retention is policy


def test_claim_modes():
    """R8.4: CLAIM is an own checkpoint, LEGACY a savepoint that may be built on, NO_CLAIM is not touched at all."""
    restored = {mode: CheckpointProperties.for_restored(mode, ON_FAILURE) for mode in ClaimMode}
    assert restored[ClaimMode.CLAIM] == CheckpointProperties.for_checkpoint(ON_FAILURE)
    assert restored[ClaimMode.LEGACY] == CheckpointProperties.for_savepoint(force=False)
    assert [p.unclaimed for p in restored.values()] == [True, False, False]


def test_as_full():
    checkpoint = CheckpointProperties.for_checkpoint(ON_CANCEL).as_full()
    assert checkpoint.type is SnapshotType.FULL_CHECKPOINT
    assert flags(checkpoint) == flags(CheckpointProperties.for_checkpoint(ON_CANCEL))
    savepoint = CheckpointProperties.for_savepoint(True)
    assert savepoint.as_full() is savepoint


# ---- settings ------------------------------------------------------------------------------------------------------


def test_defaults_are_flinks():
    """Section 11."""
    settings = CheckpointSettings.from_configuration(Configuration())
    assert settings == CheckpointSettings()
    assert settings.interval_ms is None
    assert settings.timeout_ms == 600_000
    assert (settings.min_pause_ms, settings.max_concurrent, settings.tolerable_failures) == (0, 1, 0)
    assert (settings.num_retained, settings.retention) == (1, NEVER)
    assert settings.exactly_once
    assert settings.after_tasks_finish
    assert (settings.unaligned, settings.incremental) == (False, False)
    assert settings.aligned_timeout_ms == 0
    assert settings.history_size == 10
    assert settings.warnings == ()


def test_every_option_arrives():
    prefix = "execution.checkpointing."
    options = {
        "interval": "10 s",
        "interval-during-backlog": "30 s",
        "mode": "EXACTLY_ONCE",
        "timeout": "1 min",
        "min-pause": "500 ms",
        "max-concurrent-checkpoints": 1,
        "tolerable-failed-checkpoints": 3,
        "externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "num-retained": 2,
        "unaligned.enabled": True,
        "aligned-checkpoint-timeout": "5 s",
        "checkpoints-after-tasks-finish": False,
        "incremental": True,
        "dir": "file:/checkpoints",
        "savepoint-dir": "file:/sp",
    }
    others = {"web.checkpoints.history": 3, "headrace.full-checkpoint.max-files": 7}
    configuration = Configuration({prefix + key: value for key, value in options.items()} | others)
    assert CheckpointSettings.from_configuration(configuration) == CheckpointSettings(
        interval_ms=10_000,
        interval_during_backlog_ms=30_000,
        timeout_ms=60_000,
        min_pause_ms=500,
        tolerable_failures=3,
        retention=ON_CANCEL,
        num_retained=2,
        unaligned=True,
        aligned_timeout_ms=5000,
        after_tasks_finish=False,
        incremental=True,
        savepoint_dir="file:/sp",
        history_size=3,
        full=FullCheckpointPolicy(max_files=7),
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"interval_ms": 100, "interval_during_backlog_ms": 99}, "must be at least execution.checkpointing.interval"),
        ({"interval_during_backlog_ms": 99}, "execution.checkpointing.interval is not: set it too"),
        ({"unaligned": True, "max_concurrent": 2}, "max-concurrent-checkpoints is 2"),
    ],
)
def test_bounds(wrong, message):
    """R5.4, R6.4."""
    with pytest.raises(InvalidArgument, match=message):
        CheckpointSettings(**wrong)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("execution.checkpointing.interval", "9 ms", "at least 10 ms"),
        ("execution.checkpointing.timeout", "9 ms", "at least 10 ms"),
        ("execution.checkpointing.min-pause", -1, "at least 0 ms"),
        ("execution.checkpointing.max-concurrent-checkpoints", 0, "at least 1;"),
        ("execution.checkpointing.aligned-checkpoint-timeout", -1, "at least 0 ms"),
        ("web.checkpoints.history", -1, "at least 0;"),
        ("headrace.full-checkpoint.max-size", 0, "at least 1 bytes"),
        ("headrace.full-checkpoint.max-files", 0, "at least 1;"),
        ("headrace.full-checkpoint.max-files-per-operator", 0, "at least 1;"),
        ("headrace.full-checkpoint.max-chain-length", 0, "at least 1;"),
        ("headrace.full-checkpoint.retry", 0, "at least 1 ms"),
        ("headrace.full-checkpoint.cooldown", -1, "at least 0 ms"),
    ],
)
def test_bounds_of_options(option, value, message):
    """R5.4, R7.6."""
    with pytest.raises(ConfigError, match=message):
        Configuration({option: value})


@pytest.mark.parametrize("tolerable", [-1, "-1"])
def test_the_seeds_minus_one_is_rejected(tolerable):
    """S4: negative numbers of tolerable failures are an error, the default is 0."""
    with pytest.raises(ConfigError, match="at least 0"):
        Configuration({"execution.checkpointing.tolerable-failed-checkpoints": tolerable})


def test_a_year_is_the_longest_pause_and_the_interval_is_never_shorter():
    """R5.4: interval := max(interval, min pause); the pause is capped at a year."""
    settings = CheckpointSettings(interval_ms=10, min_pause_ms=10**12)
    assert settings.min_pause_ms == settings.interval_ms == 365 * 24 * 3600 * 1000
    assert CheckpointSettings(min_pause_ms=50).interval_ms is None


@pytest.mark.parametrize("number", [0, -3])
def test_at_least_one_checkpoint_is_retained(number):
    """R5.8: num-retained <= 0 -> a warning, and 1."""
    settings = CheckpointSettings(num_retained=number)
    assert settings.num_retained == 1
    assert "at least one completed checkpoint is needed" in settings.warnings[0]


def test_pause_with_concurrency_is_a_warning():
    """D1: Flink's documentation forbids it, its code does not."""
    (warning,) = CheckpointSettings(interval_ms=100, min_pause_ms=50, max_concurrent=2).warnings
    assert "checkpoints may still overlap" in warning
    assert not CheckpointSettings(interval_ms=100, min_pause_ms=50).warnings
    assert not CheckpointSettings(interval_ms=100, max_concurrent=2).warnings


def test_unaligned_needs_exactly_once():
    """R6.4: else it is off; Flink says nothing, we do."""
    settings = CheckpointSettings(unaligned=True, exactly_once=False, max_concurrent=5)
    assert not settings.unaligned
    assert "EXACTLY_ONCE" in settings.warnings[0]


def test_interval_during_backlog():
    """R5.4: used while a source has a backlog; 0 = none; unset = as ever."""
    assert CheckpointSettings(interval_ms=100).interval(backlog=True) == 100
    assert CheckpointSettings(interval_ms=100, interval_during_backlog_ms=500).interval(backlog=True) == 500
    assert CheckpointSettings(interval_ms=100, interval_during_backlog_ms=500).interval(backlog=False) == 100
    assert CheckpointSettings(interval_ms=100, interval_during_backlog_ms=0).interval(backlog=True) is None
