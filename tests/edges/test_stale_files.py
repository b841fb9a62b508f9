"""What is stale, damaged or foreign in the directories of a job changes neither its output nor what others own."""

import os
import shutil

import pytest
from edge_kit import counted, files_below, key_of

from headrace import KeyedProcessFunction, ValueStateDescriptor
from headrace.connectors.files import FileSink
from headrace.errors import HeadraceError


def crashed(cluster, **options):
    job = cluster.start(options=options)
    job.feed(100)
    job.checkpoint()
    job.feed(20)
    job.kill_driver()
    return job


def job_directory(cluster):
    (found,) = [p for p in cluster.checkpoints.iterdir() if len(p.name) == 32]
    return found


def resume_and_finish(cluster, **more):
    job = cluster.resume(**more)
    job.feed_rest()
    assert job.wait() == "FINISHED", job.error
    assert cluster.visible() == counted(range(400))


@pytest.mark.parametrize("junk", [b"", b"\0" * 100, b"garbage that is no log entry at all", os.urandom(4000)])
def test_garbage_entry_in_the_log_of_another_job(cluster, junk):
    crashed(cluster)
    other = cluster.checkpoints / ("f" * 32) / "log"
    other.mkdir(parents=True)
    (other / "000000000001").write_bytes(junk)
    resume_and_finish(cluster)


@pytest.mark.parametrize("junk", [b"", b"\0" * 100, b"garbage that is no log entry at all"])
def test_garbage_newest_entry(cluster, junk):
    crashed(cluster)
    log = job_directory(cluster) / "log"
    newest = max(log.iterdir())
    newest.write_bytes(junk)
    before = files_below(cluster.checkpoints)
    job = cluster.resume()
    job.wait()
    assert job.status == "FAILED"
    assert files_below(cluster.checkpoints) == before


def test_metadata_zero_bytes_of_only_checkpoint(cluster):
    crashed(cluster)
    (m,) = cluster.checkpoints.rglob("_metadata")
    m.write_bytes(b"")
    before = files_below(cluster.checkpoints)
    job = cluster.resume()
    job.wait()
    after = files_below(cluster.checkpoints)
    assert {k: v for k, v in after.items() if "/log/" not in k} == {k: v for k, v in before.items() if "/log/" not in k}


def test_metadata_replaced_by_symlink_to_directory_moved(cluster, tmp_path):
    """The directory of the job was moved to another disk and linked."""
    crashed(cluster)
    d = job_directory(cluster)
    moved = tmp_path / "elsewhere"
    d.rename(moved)
    d.symlink_to(moved)
    resume_and_finish(cluster)


def test_directory_of_checkpoint_is_a_link(cluster, tmp_path):
    crashed(cluster)
    (chk,) = job_directory(cluster).glob("chk-*")
    moved = tmp_path / "elsewhere"
    chk.rename(moved)
    chk.symlink_to(moved)
    resume_and_finish(cluster)


def test_stale_checkpoint_directory_of_next_id(cluster):
    crashed(cluster)
    d = job_directory(cluster) / "chk-2"
    d.mkdir()
    (d / "_metadata").write_bytes(b"")
    (d / "e1r0-v0-s0.state").write_bytes(b"stale")
    job = cluster.resume()
    job.feed(10)
    assert job.checkpoint() >= 2
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


def test_other_type_of_state(cluster):
    crashed(cluster)

    def program(numbers):
        class Text(KeyedProcessFunction):
            def open(self, runtime_context):
                self._count = runtime_context.get_state(ValueStateDescriptor("count", "string"))

            def process_element(self, value, ctx):
                self._count.update("x")
                yield str(value)

        numbers.key_by(key_of).process(Text()).uid("count").sink_to(FileSink(str(cluster.output), "text")).uid("files")

    before = cluster.checkpoint_files()
    job = cluster.resume(program, options={"restart-strategy.type": "none"})
    job.wait()
    assert job.status == "FAILED"
    assert cluster.checkpoint_files() == before
    resume_and_finish(cluster)


def test_other_backend(cluster):
    crashed(cluster)
    before = cluster.checkpoint_files()
    job = cluster.resume(options={"state.backend.type": "rocksdb", "restart-strategy.type": "none"})
    job.wait()
    assert job.status == "FAILED"
    assert cluster.checkpoint_files() == before
    resume_and_finish(cluster)


def test_same_sink_directory_two_jobs(cluster, tmp_path):
    """A second job with another name into the same sink directory must leave what the first has prepared."""
    first = cluster.start()
    first.feed(100)
    first.checkpoint_without_notification()
    first.kill_driver()
    second_checkpoints = cluster.checkpoints
    cluster.checkpoints = tmp_path / "other"
    second = cluster.start()
    second.feed(40)
    second.checkpoint()
    assert cluster.comes_to_show(counted(range(40)))
    second.kill_driver()
    cluster.checkpoints = second_checkpoints
    third = cluster.resume()
    third.feed_rest()
    assert third.wait() == "FINISHED"
    shown = cluster.visible()
    assert sorted(set(shown)) == sorted(counted(range(400)))
    assert len(shown) == 440


def test_start_without_resume_leaves_older(cluster):
    crashed(cluster)
    before = cluster.checkpoint_files()
    job = cluster.start()
    job.feed_rest()
    assert job.wait() == "FINISHED"
    after = cluster.checkpoint_files()
    assert before.items() <= after.items()


def test_resume_in_place_of_finished(cluster):
    job = cluster.start()
    job.feed_rest()
    assert job.wait() == "FINISHED"
    again = cluster.resume()
    again.wait()
    assert again.status == "FAILED"
    assert cluster.visible() == counted(range(400))


def test_all_entries_of_the_newest_job_are_damaged(cluster):
    """An older job of the same name is not what the user means by --resume."""
    crashed(cluster)
    old = job_directory(cluster).name
    job = cluster.start()
    job.feed(200)
    job.checkpoint()
    job.kill_driver()
    (new,) = [p for p in cluster.checkpoints.iterdir() if p.name != old]
    for entry in (new / "log").iterdir():
        entry.write_bytes(b"")
    resumed = cluster.resume()
    assert resumed.wait_briefly(), f"job {old} was resumed at record {resumed.position}"
    assert resumed.status == "FAILED"


def test_visible_files_survive_output_directory_moved_away_and_restart(cluster):
    """A consumer takes the files away when they are visible."""
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    assert cluster.comes_to_show(counted(range(100)))
    for path in cluster.output.glob("part-*"):
        path.unlink()
    job.kill_worker()
    job.feed_rest()
    assert job.wait() == "FINISHED", job.error
    assert cluster.visible() == counted(range(400))[100:]


def test_nothing_hidden_is_left_at_the_end(cluster):
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert [p.name for p in cluster.output.iterdir() if p.name.startswith(".")] == []


def test_nothing_hidden_is_left_when_cancelled(cluster):
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    job.feed(100)
    job.cancel()
    assert job.wait() == "CANCELED"
    assert [p for p in files_below(cluster.output) if ".headrace" in p] == []


@pytest.mark.parametrize("mode", ["CLAIM", "NO_CLAIM", "LEGACY"])
def test_a_savepoint_of_a_running_job_is_started_twice(cluster, mode, tmp_path):
    job = cluster.start()
    job.feed(100)
    savepoint = job.savepoint(cluster.savepoints)
    before = files_below(savepoint)
    job.feed_rest()
    assert job.wait() == "FINISHED"
    cluster.output = tmp_path / "second"
    second = cluster.start_from(savepoint, options={"execution.state-recovery.claim-mode": mode})
    second.feed(10)
    second.checkpoint()
    second.feed(10)
    second.checkpoint()
    assert second.has_cleaned_up()
    if mode != "CLAIM":
        assert files_below(savepoint) == before
    second.feed_rest()
    assert second.wait() == "FINISHED", second.error


def test_a_checkpoint_directory_that_was_deleted_is_not_reported_as_another_driver(cluster):
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    shutil.rmtree(cluster.checkpoints)
    job.feed(10)
    with pytest.raises(HeadraceError):
        job.checkpoint()
    assert job.wait() == "FAILED"
    assert "another driver has taken over" not in job.error


def test_an_old_driver_that_restarts_its_tasks_says_that_another_one_has_taken_over(cluster):
    """Its checkpoint was subsumed by the new driver: that is no damage which the user should repair."""
    old = cluster.start()
    old.feed(100)
    old.checkpoint()
    new = cluster.resume()
    for _ in range(3):
        new.feed(10)
        new.checkpoint()
    assert new.has_cleaned_up()
    old.kill_worker()
    assert old.wait() == "FAILED"
    new.feed_rest()
    assert new.wait() == "FINISHED", new.error
    assert cluster.visible() == counted(range(400))
    assert "another driver has taken over" in old.error, old.error
    assert "DAMAGED" not in old.error
