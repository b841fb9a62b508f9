"""Checkpoints through real subtasks: barriers among records, blocked channels, and a cut that loses and doubles nothing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, local
from headrace.checkpoint.types import Barrier
from headrace.job.status import Status
from headrace.records.frames import FrameKind
from headrace.worker.operators.sinks import decode_collected
from headrace.worker.snapshots.snapshot_writer import snapshot_inline
from headrace.worker.subtask import Subtask
from rig import Services, data, event, frames_to, plan_of, subtask, taken, work_off

BARRIER, END_OF_DATA, END_OF_PARTITION = FrameKind.BARRIER, FrameKind.END_OF_DATA, FrameKind.END_OF_PARTITION


def two_writers(env):
    """source x1 -> middle x2 -> last x1"""
    middle = env.from_collection([1, 2]).rebalance().map(lambda n: n).set_parallelism(2).name("middle")
    middle.rebalance().map(lambda n: n).name("last")._collect_into("out")


def last():
    services = Services()
    task = subtask(plan_of(two_writers), "last", 0, services)
    task.open()
    return task, services


def barrier(number=1, writer=0, edge=1):
    return event(BARRIER, edge, writer, Barrier(number, 0).encode())


def test_a_source_sends_the_barrier_behind_what_it_has_read():
    task = subtask(plan_of(two_writers), "Collection")
    task.open()
    task.step(1)
    task.trigger(Barrier(1, 0))
    rows = taken(task)
    for target in (0, 1):
        assert [kind for kind, _ in frames_to(rows, target)][-1] is BARRIER
    assert sum(len(values) for t in (0, 1) for kind, values in frames_to(rows, t) if kind is FrameKind.PICKLE) == 1
    (progress,) = task.take_snapshots()
    assert progress.barrier.id == 1
    assert task.take_snapshots() == []


def test_a_barrier_closes_its_row():
    task = subtask(plan_of(two_writers), "Collection")
    task.open()
    task.trigger(Barrier(1, 0))
    assert all(frames[-1].kind == BARRIER for _, frames in taken(task))


def test_a_channel_with_a_barrier_waits_for_the_others():
    task, services = last()
    task.receive(data("a1", edge=1, writer=0) + barrier(1, 0) + data("a2", edge=1, writer=0))
    work_off(task)
    assert services.collected() == ["a1"]
    assert task.take_snapshots() == []
    assert not task.has_events()
    task.receive(data("b1", edge=1, writer=1))
    work_off(task)
    assert services.collected() == ["b1"]
    task.receive(barrier(1, 1) + data("b2", edge=1, writer=1))
    work_off(task)
    assert len(task.take_snapshots()) == 1
    assert services.collected() == ["a2", "b2"]


def test_an_ended_channel_is_not_waited_for():
    task, services = last()
    task.receive(event(END_OF_DATA, 1, 1) + event(END_OF_PARTITION, 1, 1))
    task.receive(data("a", edge=1, writer=0) + barrier(1, 0))
    work_off(task)
    assert len(task.take_snapshots()) == 1
    assert services.collected() == ["a"]


def test_a_channel_that_ends_while_others_wait_lets_them_go():
    task, services = last()
    task.receive(barrier(1, 0) + data("a", edge=1, writer=0))
    work_off(task)
    assert services.collected() == []
    task.receive(event(END_OF_DATA, 1, 1) + event(END_OF_PARTITION, 1, 1))
    work_off(task)
    assert len(task.take_snapshots()) == 1
    assert services.collected() == ["a"]


def test_a_cancel_marker_lets_blocked_channels_go():
    task, services = last()
    task.receive(barrier(1, 0) + data("a", edge=1, writer=0))
    work_off(task)
    task.receive(event(FrameKind.CANCEL_MARKER, 1, 1, (1).to_bytes(8, "little")))
    work_off(task)
    assert services.collected() == ["a"]
    assert task.take_snapshots() == []
    assert [decline.checkpoint_id for decline in task.take_declines()] == [1]


def test_an_abort_lets_blocked_channels_go():
    task, services = last()
    task.receive(barrier(1, 0) + data("a", edge=1, writer=0))
    work_off(task)
    task.notify_aborted(1)
    work_off(task)
    assert services.collected() == ["a"]


def test_a_trigger_before_open_is_declined():
    task = subtask(plan_of(two_writers), "Collection")
    task.trigger(Barrier(1, 0))
    assert [decline.checkpoint_id for decline in task.take_declines()] == [1]
    assert task.take_snapshots() == []


def test_blocked_records_still_count_as_queued():
    task, _ = last()
    row = data("a" * 100, edge=1, writer=0)
    task.receive(barrier(1, 0))
    work_off(task)
    task.receive(row)
    work_off(task)
    assert task.queued_bytes >= 100


# --- the cut --------------------------------------------------------------------------------------------------------


class Counting(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", default=0))

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield value % 5, self.count.value()


def diamond(env):
    """Two branches of different length to one keyed operator, so that barriers and records race."""
    numbers = env.from_datagen(lambda n: n, count=100)
    far = numbers.shuffle().map(lambda n: n).rebalance().map(lambda n: n)
    near = numbers.rebalance().map(lambda n: n)
    keyed = far.union(near).key_by(lambda n: n % 5).process(Counting()).uid("count")
    keyed.rebalance().map(lambda pair: pair)._collect_into("out")


class MidFlight(local.LocalRun):
    """Triggers a checkpoint in the middle of things and keeps running: nothing is drained first."""

    state: bytes | None = None

    def run_with_checkpoint(self, at_round):
        rounds = 0
        waiting: dict[int, Subtask] = {}
        states: dict[int, dict[str, object]] = {}

        def stop():
            nonlocal rounds
            rounds += 1
            subtasks = [t for level in self._tasks for t in level if isinstance(t, Subtask)]
            if rounds == at_round:
                waiting.update({id(t): t for t in subtasks})
                for task in subtasks:
                    if task.source is not None:
                        task.trigger(Barrier(1, self.time))
                for level, tasks in enumerate(self._tasks):
                    for task in tasks:
                        self._deliver(level, task)
            for key, task in list(waiting.items()):
                snapshots = task.take_snapshots()
                if snapshots or task.status is Status.FINISHED:
                    states[key] = {op: s for p in snapshots for op, s in snapshot_inline(p).items()}
                    del waiting[key]
            return rounds >= at_round and not waiting

        self.run(stop=stop)
        if waiting:
            stop()  # the last subtasks finished in the last round
        assert not waiting
        if rounds >= at_round:
            left: dict[str, list[object]] = {}
            for task in (t for level in self._tasks for t in level if isinstance(t, Subtask)):
                for operator_id in (operator.operator.id for operator in task.operators):
                    left.setdefault(operator_id, []).append(states[id(task)].get(operator_id))
            self.state = msgspec.msgpack.encode(local._LocalSnapshot(1, left))


def environment(parallelism):
    env = StreamExecutionEnvironment.local()
    env.set_parallelism(parallelism)
    diamond(env)
    return env._job_plan()


def collected(records):
    def on_output(channel, payload):
        records.extend(decode_collected(payload))

    return on_output


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 1000),
    st.integers(1, 25),
    st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_a_checkpoint_in_full_flight_loses_and_doubles_nothing(before, after, seed, slice_records, at_round):
    """Every key goes on counting exactly where its state was, up to the number of its records."""
    first_out: list[tuple[int, int]] = []
    first = MidFlight(environment(before), collected(first_out), seed=seed, slice_records=slice_records)
    first.run_with_checkpoint(at_round)
    if first.state is None:
        return  # the job was through before the checkpoint
    second_out: list[tuple[int, int]] = []
    second = local.LocalRun(environment(after), collected(second_out), seed=seed, restore=first.state)
    second.run()
    for key in range(5):
        counts = sorted(n for k, n in second_out if k == key)
        if counts:  # all of the key's records may have been before the barrier
            assert counts == list(range(counts[0], 41))
        seen = {n for k, n in first_out if k == key}
        assert seen | set(counts) == set(range(1, 41)) or max(seen, default=0) < (counts[0] if counts else 41)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_program_itself(parallelism):
    out: list[tuple[int, int]] = []
    local.LocalRun(environment(parallelism), collected(out), seed=1).run()
    assert sorted(out) == sorted((key, n) for key in range(5) for n in range(1, 41))
