"""A disk that is full is an outage: the job says where, loses nothing, leaves nothing behind, and goes on when there is room."""

import os
import subprocess
from contextlib import suppress

import pytest
from edge_kit import counted, eventually, files_below

from headrace import StreamExecutionEnvironment
from headrace.connectors.files import FileSink
from headrace.errors import HeadraceError

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")


@pytest.fixture
def small(tmp_path):
    """A directory on a disk of 1 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    if mounted.returncode:  # root in a container need not be allowed to
        pytest.skip(f"cannot mount a file system here: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(directory, leave=0):
    """Take all the room but some bytes."""
    with (directory / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
        if leave:
            file.truncate(max(0, os.fstat(file.fileno()).st_size - leave))
    return directory / "filler"


def test_checkpoint_directory_full(cluster, small):
    cluster.checkpoints = small / "checkpoints"
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    filler = fill(small)
    job.feed(50)
    with pytest.raises(HeadraceError):
        job.checkpoint()
    assert job.running()
    filler.unlink()
    job.checkpoint()
    assert job.has_cleaned_up()
    assert [p for p in files_below(small) if "tmp" in p or ".headrace" in p] == []
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


def test_checkpoint_directory_full_and_driver_killed(cluster, small):
    cluster.checkpoints = small / "checkpoints"
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    filler = fill(small)
    job.feed(50)
    with pytest.raises(HeadraceError):
        job.checkpoint()
    job.kill_driver()
    resumed = cluster.resume()
    assert not resumed.wait_briefly(), resumed.error
    resumed.kill_driver()
    filler.unlink()
    again = cluster.resume()
    again.feed_rest()
    assert again.wait() == "FINISHED", again.error
    assert cluster.visible() == counted(range(400))


def test_checkpoint_directory_full_at_the_end(cluster, small):
    cluster.checkpoints = small / "checkpoints"
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    filler = fill(small)
    job.feed_rest()
    assert not job.wait_briefly(), (job.status, job.error)
    filler.unlink()
    assert job.wait() == "FINISHED", job.error
    assert cluster.visible() == counted(range(400))


@pytest.mark.parametrize("leave", [0, 8192, 12288])
def test_savepoint_target_full(cluster, small, leave):
    job = cluster.start()
    job.feed(100)
    filler = fill(small, leave)
    with pytest.raises(HeadraceError):
        job.savepoint(small)
    assert job.has_cleaned_up()
    assert eventually(lambda: not list(small.glob("savepoint-*")), 2.0), list(small.rglob("*"))
    filler.unlink()
    job.savepoint(small)
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


@pytest.mark.parametrize("drain", [False, True])
def test_stop_with_savepoint_target_full(cluster, small, drain):
    job = cluster.start()
    job.feed(100)
    filler = fill(small)
    with pytest.raises(HeadraceError):
        job.stop(small, drain=drain)
    filler.unlink()
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


def test_sink_directory_full(cluster, small):
    cluster.output = small / "out"
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    filler = fill(small)
    job.feed(50)
    with pytest.raises(HeadraceError):
        job.checkpoint()
    assert eventually(lambda: job.restarts > 0)
    filler.unlink()
    job.feed_rest()
    assert job.wait() == "FINISHED", job.error
    assert cluster.visible() == counted(range(400))
    hidden = [p for p in files_below(small) if ".headrace" in p]
    assert hidden == []


def write_until_full(small, format):
    """Run a program whose output does not fit; what it says."""
    env = StreamExecutionEnvironment.local()
    rows = env.from_datagen(lambda n: (n, f"{n} " + "x" * 1000), count=5000, type_info="n bigint, s string")
    rows.sink_to(FileSink(str(small / "out"), format, compression="none"))
    with pytest.raises(HeadraceError) as caught:
        env.execute("full")
    return str(caught.value)


@pytest.mark.parametrize("format", ["text", "json", "parquet"])
def test_a_sink_says_which_disk_is_full(small, format):
    assert str(small / "out") in write_until_full(small, format)


@pytest.mark.parametrize("format", ["text", "json", "parquet"])
def test_a_sink_that_met_a_full_disk_leaves_no_hidden_file(small, format):
    write_until_full(small, format)
    assert {path: len(data) for path, data in files_below(small).items()} == {}


def long_lines(numbers, output, size):
    numbers.map(lambda n: f"{n} " + "x" * size).sink_to(FileSink(str(output), "text")).uid("files")


def test_sink_that_fills_its_disk_leaves_room_for_the_next_attempt(cluster, small):
    """What an attempt writes fits on the disk, twice as much does not: what a killed worker left must go first."""
    cluster.output = small / "out"
    lines = lambda numbers: long_lines(numbers, cluster.output, 150)  # noqa: E731
    restarts = {"restart-strategy.fixed-delay.attempts": "5", "restart-strategy.fixed-delay.delay": "1 s"}
    job = cluster.start(lines, total=5000, options=restarts)
    job.feed(4000)
    left = {path: data for path, data in files_below(small).items() if "inprogress" in path}
    assert left
    job.kill_worker()
    # As it is after SIGKILL: the writer was not closed, and the next attempt has not started yet.
    for path, data in left.items():
        (small / path).parent.mkdir(exist_ok=True)
        (small / path).write_bytes(data)
    assert job.running(), job.error
    job.feed(0)
    eventually(lambda: job.restarts > 1, 5.0)
    assert not job.wait_briefly(), (job.error, {path: len(data) for path, data in files_below(small).items()})
    job.checkpoint()


def test_sink_left_nothing_after_failure(cluster, small):
    cluster.output = small / "out"
    job = cluster.start(
        lambda numbers: long_lines(numbers, cluster.output, 1500), total=4000, options={"restart-strategy.type": "none"}
    )
    job.feed(4000)
    assert job.wait() == "FAILED"
    assert files_below(small) == {}


@pytest.mark.parametrize("incremental", ["false", "true"])
def test_local_state_full(cluster, small, incremental):
    options = {
        "state.backend.type": "rocksdb",
        "io.tmp.dirs": str(small),
        "execution.checkpointing.incremental": incremental,
    }
    job = cluster.start(options=options)
    job.feed(100)
    job.checkpoint()
    filler = fill(small)
    job.feed(50)
    with pytest.raises(HeadraceError):
        job.checkpoint()
    assert eventually(lambda: job.restarts > 0)  # RocksDB is of no use any more after such an error
    assert "No space left on device" in job.client.job.failure_log[0]
    filler.unlink()
    assert eventually(lambda: has_checkpoint(job), 5.0)
    job.feed_rest()
    assert job.wait() == "FINISHED", job.error
    assert cluster.visible() == counted(range(400))


def has_checkpoint(job):
    """Whether a checkpoint could be taken just now."""
    with suppress(HeadraceError):
        return bool(job.checkpoint())
    return False
