"""What the mode of checkpoints and the number of tolerable failures change in a whole job."""

from collections import Counter

import pytest
from edge_kit import (
    WAIT,
    Held,
    LedgerSink,
    Numbering,
    Numbers,
    eventually,
    fail_state_files,
    in_background,
    number,
    numbered,
    numbering,
    record,
    wait_ended,
    wait_running,
    wait_until,
)

from headrace import CheckpointingMode
from headrace.driver import services
from headrace.errors import HeadraceError
from headrace.pyflink.datastream.checkpoint_config import CheckpointConfig
from headrace.worker.snapshots import snapshot_writer

HOUR = 3_600_000
gates, seen = {}, {}  # functions travel as bytes: they find what they share with the test here, by name


class GatedNumbers(Numbers):
    """The reader of split 1 waits at the gate of the test, if there is one; meanwhile it sends no barrier."""

    def reader(self, context, splits):
        reader = super().reader(context, splits)
        poll = reader.poll

        def wait_and_poll(max_records):
            gate = gates.get(self._tap)
            if gate is not None and dict(splits).keys() == {1}:
                gate.wait()
            return poll(max_records)

        reader.poll = wait_and_poll
        return reader


class SeenCount(Numbering):
    def __init__(self, name):
        self._name = name

    def process_element(self, value, ctx):
        seen[self._name].append(value)
        yield from super().process_element(value, ctx)


# SPEC R6.2, R6.3
@pytest.mark.parametrize("mode", CheckpointingMode)
def test_the_mode_decides_whether_records_behind_a_barrier_wait(jobs, tap, ledger, tmp_path, mode):
    def build(env):
        env.enable_checkpointing(HOUR, mode)
        numbers = env.from_source(GatedNumbers(tap.name, splits=2)).key_by(lambda n: 0)
        numbers.process(SeenCount(tap.name)).set_parallelism(1).sink_to(LedgerSink(ledger.name)).set_parallelism(1)

    seen[tap.name] = []
    restart = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "10 ms"}
    client = wait_running(jobs.start(tmp_path / "checkpoints", build, restart, parallelism=2))
    tap.give(10, 0)
    tap.give(10, 1)
    wait_until(lambda: len(seen[tap.name]) == 20)
    gate = gates[tap.name] = Held()
    jobs.at_end(gate.release)
    assert gate.reached.wait(WAIT)
    in_background(client.trigger_checkpoint)
    stats = client.job.stats
    wait_until(lambda: stats.snapshot().history and 0 in stats.snapshot().history[0].vertices[0].subtasks)
    tap.give(20, 0)  # behind the first barrier, while the second one has not come

    goes_on = mode is CheckpointingMode.AT_LEAST_ONCE
    eventually(lambda: len(seen[tap.name]) == 30, WAIT if goes_on else 0.5)
    assert len(seen[tap.name]) == (30 if goes_on else 20)
    gate.release()
    wait_until(lambda: stats.snapshot().counts.completed == 1)
    tap.fail()
    wait_until(lambda: client.job.restarts == 1)
    tap.close()
    assert wait_ended(client) == ("FINISHED", None)

    repeated = Counter(number(0, position) for position in range(10, 20)) if goes_on else Counter()
    values = Counter(value for value, _ in ledger.visible.elements())
    assert values == record(20, 0) + record(10, 1) + repeated
    assert max(count for _, count in ledger.visible) == (40 if goes_on else 30)


# SPEC R5.6
@pytest.mark.parametrize(
    ("configure", "tolerated"),
    [
        (lambda settings: settings.set_fail_on_checkpointing_errors(True), 0),
        (lambda settings: settings.set_tolerable_checkpoint_failure_number(1), 1),
        (lambda settings: settings.set_fail_on_checkpointing_errors(False), None),
    ],
)
def test_failed_checkpoints_fail_the_job_or_not(jobs, tap, ledger, tmp_path, monkeypatch, configure, tolerated):
    def build(env):
        configure(CheckpointConfig(env.get_configuration()))
        numbering(tap, ledger)(env)

    broken = fail_state_files(monkeypatch)
    client = wait_running(jobs.start(tmp_path / "checkpoints", build))
    tap.give(10)
    for _ in range(3 if tolerated is None else tolerated + 1):
        assert client.get_job_status().name == "RUNNING"
        with pytest.raises(HeadraceError, match="the storage does not answer"):
            client.trigger_checkpoint(timeout=WAIT)
    if tolerated is None:
        broken.end()
        assert client.trigger_checkpoint(timeout=WAIT) == 4
        tap.close()
        assert wait_ended(client) == ("FINISHED", None)
        assert ledger.visible == numbered(10)
    else:
        status, error = wait_ended(client)
        assert status == "FAILED"
        assert f"failed in a row, {tolerated} are tolerated" in str(error)
        assert ledger.visible == Counter()


def test_driver_and_workers_write_with_the_buffer_that_was_set(jobs, tap, ledger, tmp_path, monkeypatch):
    opened = []
    for module in (services, snapshot_writer):
        real = module.open_store
        monkeypatch.setattr(module, "open_store", lambda real=real, **given: opened.append(given) or real(**given))
    options = {"execution.checkpointing.write-buffer-size": "64 kb"}
    client = wait_running(jobs.start(tmp_path, numbering(tap, ledger), options))
    tap.give(10)
    client.trigger_checkpoint()
    assert {given["write_buffer"] for given in opened} == {64 << 10}
    assert len(opened) > 1
