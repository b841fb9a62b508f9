"""The three backends of the seeds, and PyFlink's names for them, are shorthands for options."""

import pytest

from headrace import EmbeddedRocksDBStateBackend, HashMapStateBackend, StreamExecutionEnvironment
from headrace.config import Configuration
from headrace.pyflink.datastream import CheckpointConfig, FsStateBackend, MemoryStateBackend, RocksDBStateBackend
from headrace.storage.log import CommitNumber, CompletedRef, EpochStarted, LogEntry

KEYS = (
    "state.backend.type",
    "execution.checkpointing.storage",
    "execution.checkpointing.dir",
    "execution.checkpointing.incremental",
)


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        (MemoryStateBackend(), ("hashmap", "jobmanager", None, False)),
        (FsStateBackend("file:///c"), ("hashmap", "filesystem", "file:///c", False)),
        (RocksDBStateBackend("file:///c"), ("rocksdb", "filesystem", "file:///c", False)),
        (RocksDBStateBackend("file:///c", True), ("rocksdb", "filesystem", "file:///c", True)),
        (HashMapStateBackend(), ("hashmap", None, None, False)),
        (EmbeddedRocksDBStateBackend(True), ("rocksdb", None, None, True)),
    ],
)
def test_a_shorthand_sets_its_options(backend, options):
    env = StreamExecutionEnvironment.local()
    assert env.set_state_backend(backend) is env
    assert tuple(env.get_configuration().get(key) for key in KEYS) == options


def test_the_options_of_the_seeds_that_flink_has_dropped_are_kept():
    settings = StreamExecutionEnvironment.local().get_checkpoint_config()
    settings.set_prefer_checkpoint_for_recovery(True)
    assert settings.is_prefer_checkpoint_for_recovery()


def test_the_settings_of_flink_1(caplog, monkeypatch):
    monkeypatch.setattr("headrace.pyflink._without_effect._WARNED", set())
    settings = CheckpointConfig(conf := Configuration()).set_fail_on_checkpointing_errors(False)
    assert settings.get_tolerable_checkpoint_failure_number() == 2**31 - 1
    assert settings.set_force_checkpointing(True) is settings
    assert "CheckpointConfig.set_force_checkpointing has no effect: there are no iterations" in caplog.text
    assert conf.key_set() == {"execution.checkpointing.tolerable-failed-checkpoints"}


def test_a_newer_savepoint_is_passed_over_if_checkpoints_are_preferred():
    checkpoint = CompletedRef(7, CommitNumber(9), "chk-7", 0)
    savepoint = CompletedRef(8, CommitNumber(10), "file:///s/savepoint-1", 0)
    fields = {"seq": 10, "previous": 0, "time_ms": 0, "event": EpochStarted(None), "retained": (checkpoint, savepoint)}
    others = {name: None for name in LogEntry.__struct_fields__ if name not in fields}
    entry = LogEntry(**others, **fields)
    assert entry.newest_first() == [savepoint, checkpoint]
    assert entry.newest_first(prefer_checkpoints=True) == [checkpoint, savepoint]
