"""A restart reads metadata on the driver and state in the workers; what is damaged is found there and stepped back over."""

import re

import pytest
from edge_kit import counted, eventually, files_below

from headrace import KeyedProcessFunction, ValueStateDescriptor

RETAINED = {
    "execution.checkpointing.num-retained": "3",
    "headrace.recovery.allow-repeated-output": "true",
    "restart-strategy.fixed-delay.attempts": "1",
}
INCREMENTAL = {"execution.checkpointing.incremental": "true"}
ROCKSDB = INCREMENTAL | {"state.backend.type": "rocksdb"}
FILES = {
    "metadata": ("chk-2/_metadata", {}),
    "position of the source": ("chk-2/*-v0-s0.state", {}),
    "keyed state and committables": ("chk-2/*-v1-s0.state", {}),
    "increment": ("shared/*-c2-*.shared", INCREMENTAL),
    "files of rocksdb": ("shared/*-c2-*.shared", ROCKSDB),
    "private files of rocksdb": ("chk-2/*-v1-s0.state", ROCKSDB),
}


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path):
    path.unlink()


def damage(cluster, pattern, how=flip):
    """Damage the largest file of the only job that matches; its path."""
    path = max(cluster.checkpoints.glob(f"*/{pattern}"), key=lambda found: found.stat().st_size)
    how(path)
    return path


def start_with_two_checkpoints(cluster, options):
    """A job whose newest checkpoint holds output that was never committed."""
    job = cluster.start(options=RETAINED | options)
    job.feed(100)
    job.checkpoint()
    assert cluster.comes_to_show(counted(range(100)))
    job.feed(100)
    job.checkpoint_without_notification()
    return job


# SPEC R5.11, R9.3
@pytest.mark.parametrize("how", [flip, cut, remove])
@pytest.mark.parametrize("file", FILES)
def test_damage_sends_a_restarted_job_to_the_next_older_checkpoint(cluster, file, how):
    pattern, options = FILES[file]
    job = start_with_two_checkpoints(cluster, options)
    damage(cluster, pattern, how)
    job.kill_worker()
    job.feed_rest()
    assert job.wait() == "FINISHED", job.error  # the restart strategy allows one failure: that of the worker
    assert cluster.visible() == counted(range(400))


# SPEC R5.11, R9.3
@pytest.mark.parametrize("file", FILES)
def test_damage_sends_a_resumed_job_to_the_next_older_checkpoint(cluster, file):
    pattern, options = FILES[file]
    job = start_with_two_checkpoints(cluster, options)
    job.kill_driver()
    damage(cluster, pattern)
    resumed = cluster.resume(options=RETAINED | options | {"restart-strategy.fixed-delay.attempts": "0"})
    resumed.feed_rest()
    assert resumed.wait() == "FINISHED", resumed.error
    assert cluster.visible() == counted(range(400))


# SPEC R9.3
def test_what_a_whole_checkpoint_holds_is_committed_when_all_state_is_restored(cluster):
    job = start_with_two_checkpoints(cluster, {})
    job.kill_worker()
    assert job.running(), job.error
    assert cluster.comes_to_show(counted(range(200)))
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


@pytest.mark.parametrize("file", FILES)
def test_damage_in_the_only_checkpoint_is_an_error_that_says_what_to_do(cluster, file):
    pattern, options = FILES[file]
    job = cluster.start(options=RETAINED | options | {"execution.checkpointing.num-retained": "1"})
    job.feed(100)
    job.checkpoint()
    job.feed(100)
    job.checkpoint()
    assert job.has_cleaned_up()
    path = damage(cluster, pattern)
    stored = cluster.checkpoint_files()
    job.kill_worker()
    assert job.wait() == "FAILED"
    assert re.search(r"checkpoint 2 \('.*/chk-2'\) is DAMAGED", job.error)
    assert str(path) in job.error
    assert "repair the file, or start the job from another checkpoint or savepoint with --from" in job.error
    assert cluster.checkpoint_files() == stored  # it can be resumed when the file is repaired


@pytest.mark.parametrize("format", ["CANONICAL", "NATIVE"])
def test_a_damaged_savepoint_to_start_from_fails_at_once(cluster, format):
    job = cluster.start()
    job.feed(100)
    savepoint = job.stop(cluster.savepoints, format=format)
    state = [path for path in savepoint.rglob("*") if path.is_file() and path.name != "_metadata"]
    largest = max(state, key=lambda path: path.stat().st_size)
    flip(largest)
    second = cluster.start_from(savepoint)
    assert second.wait() == "FAILED"
    assert second.restarts == 0
    assert str(largest) in second.error
    assert "no older one is left" in second.error


def test_a_sink_that_may_have_committed_keeps_the_job_from_stepping_back(cluster):
    job = start_with_two_checkpoints(cluster, {"headrace.recovery.allow-repeated-output": "false"})
    damage(cluster, "chk-2/*-v1-s0.state")
    stored = cluster.checkpoint_files()
    job.kill_worker()
    assert job.wait() == "FAILED"
    assert re.search("sink '.*' may have committed with this one", job.error)
    assert cluster.checkpoint_files() == stored


def kinds(paths):
    """What kinds of files these are."""
    names = {"log" if "/log/" in path else path.rpartition("/")[2] for path in paths}
    return {"state" if name.endswith((".state", ".shared")) else name for name in names}


class Remember(KeyedProcessFunction):
    """State for every number."""

    def open(self, runtime_context):
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", "bigint"))

    def process_element(self, value, ctx):
        assert self._seen.value() is None, f"{value} was seen before"
        self._seen.update(value)
        yield value


def remember(numbers):
    numbers.key_by(lambda n: n).process(Remember()).print()


@pytest.mark.parametrize("options", [{}, INCREMENTAL, ROCKSDB], ids=["full", "increments", "rocksdb"])
def test_a_restart_reads_no_state_on_the_driver(cluster, options):
    job = cluster.start(options=options)
    job.feed(100)
    job.checkpoint()
    job.storage.reads["driver"].clear()
    job.kill_worker()
    assert job.running(), job.error
    assert kinds(job.storage.reads["driver"]) - {"log"} == {"_metadata"}
    assert "state" in kinds(job.storage.reads["workers"])
    job.kill_driver()
    resumed = cluster.resume(options=options)
    assert resumed.running(), resumed.error
    assert resumed.position == 100
    assert kinds(resumed.storage.reads["driver"]) == {"_metadata", "log"}
    metadata = [path for path in resumed.storage.reads["driver"] if path.endswith("_metadata")]
    assert len(metadata) == len(set(metadata))


# SPEC R7.7
@pytest.mark.parametrize("options", [{}, INCREMENTAL, ROCKSDB], ids=["full", "increments", "rocksdb"])
def test_a_restart_with_local_copies_reads_no_state_from_storage(cluster, tmp_path, options):
    copies = {
        "execution.checkpointing.data-inline-threshold": "1 kb",  # the position of the source is inside the metadata
        "execution.checkpointing.local-backup.enabled": "true",
        "execution.checkpointing.local-backup.dirs": str(tmp_path / "copies"),
        "execution.state-recovery.from-local": "true",
    }
    job = cluster.start(remember, options | copies, total=6000)
    job.feed(5000)
    job.checkpoint()
    assert "state" in kinds(map(str, files_below(cluster.checkpoints)))
    assert eventually(lambda: list((tmp_path / "copies").rglob("1/*")))
    for reads in job.storage.reads.values():
        reads.clear()
    job.kill_worker()
    job.feed_rest()
    assert job.wait() == "FINISHED", job.error
    assert kinds(job.storage.reads["driver"]) - {"log"} == {"_metadata"}
    assert job.storage.reads["workers"] == []
