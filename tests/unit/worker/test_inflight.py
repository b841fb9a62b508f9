"""In-flight data at another parallelism: every record goes to the one subtask that owns it now. SPEC R6.7"""

import pickle
from collections import Counter

import numpy as np
import pytest

from headrace.errors import IllegalState
from headrace.records import narrowing
from headrace.records.batch import Batch
from headrace.records.frames import NARROW_TIMES, NARROWED, STAMPED, FrameKind
from headrace.records.key_groups import owners_of
from headrace.records.narrowing import narrow, narrow_times
from headrace.worker.backlog import CapturedFrame
from headrace.worker.inputs import decode
from headrace.worker.keys import KeyReader
from headrace.worker.snapshots.restore import inflight_share
from rig import plan_of, vertex_plan


def keyed(env):
    numbers = env.from_sequence(0, 99).map(lambda x: x)
    numbers.key_by(lambda x: x % 10).map(lambda x: x).name("reader").print()


def typed(env):
    env.from_sequence(0, 99).key_by(0).map(lambda x: x).name("reader").print()


def custom(env):
    numbers = env.from_sequence(0, 99).map(lambda x: x)
    numbers.partition_custom(lambda key, n: key % n, lambda x: x).map(lambda x: x).name("reader").print()


def balanced(env):
    env.from_sequence(0, 99).map(lambda x: x).rebalance().map(lambda x: x).name("reader").print()


def reader(program, parallelism):
    def build(env):
        env.set_parallelism(parallelism).set_max_parallelism(16)
        program(env)

    return vertex_plan(plan_of(build), "reader")


def frame(plan, rows, skip, writer=0, narrowed=False):
    (edge,) = plan.inputs
    if edge.type.is_typed and narrowed:
        head, batch = narrow(edge.type.to_batch(rows))
        times = b"".join(narrow_times(np.array(rows) + 10**12))
        flags = STAMPED | NARROW_TIMES | NARROWED
        return CapturedFrame(edge.id, writer, FrameKind.ARROW, flags, skip, times + head + bytes(batch.serialize()))
    if edge.type.is_typed:
        body, kind = edge.type.to_batch(rows).serialize().to_pybytes(), FrameKind.ARROW
    else:
        body, kind = pickle.dumps(rows), FrameKind.PICKLE
    return CapturedFrame(edge.id, writer, kind, 0, skip, body)


@pytest.fixture(autouse=True)
def _small_batches_are_narrowed(monkeypatch):
    monkeypatch.setattr(narrowing, "MIN_SAVED", 0)


def records(plan, frames):
    for one in frames:
        batch = decode(one, plan.inputs[0].type)
        rows = batch.rows()
        if batch.timestamps is not None:
            assert batch.timestamps.tolist() == [row + 10**12 for row in rows]
        yield from rows[one.skip :]


@pytest.mark.parametrize("program", [keyed, typed, custom, balanced])
@pytest.mark.parametrize(("old", "new"), [(1, 3), (2, 3), (3, 2), (4, 1), (2, 2)])
def test_every_record_has_one_new_owner(program, old, new):
    plan = reader(program, new)
    head = plan.vertex.head.id
    stored = [
        [frame(plan, [-1, -2, *rows], 2, narrowed=True), frame(plan, rows[:1], 0, 5)] for rows in owned(plan, old)
    ]
    found = Counter()
    for subtask in range(new):
        found += Counter(str(row) for row in records(plan, inflight_share(plan, subtask, {head: stored})))
    assert found == Counter(str(row) for one in stored for row in records(plan, one))


def owned(plan, old):
    """Records as the old subtasks had them: of a keyed edge, those of their own key groups."""
    edge, rows = plan.inputs[0], list(range(60))
    if edge.ship != "hash":
        return [rows[i::old] for i in range(old)]
    batch = Batch.of_arrow(edge.type.to_batch(rows), edge.type) if edge.type.is_typed else Batch.of_rows(rows)
    owners = owners_of(KeyReader(edge.partitioning.key, 16).groups(batch), 16, old)
    return [[row for row, owner in zip(rows, owners, strict=True) if owner == i] for i in range(old)]


def test_an_edge_that_is_gone_is_named():
    plan = reader(keyed, 2)
    lost = CapturedFrame(7, 0, FrameKind.PICKLE, 0, 0, pickle.dumps([1]))
    with pytest.raises(IllegalState, match=r"in-flight data of edge 7 in front of .* the shape of the job has changed"):
        inflight_share(plan, 0, {plan.vertex.head.id: [[lost], []]})


def test_an_exchange_that_is_chained_now_is_refused():
    plan = reader(keyed, 2)
    lost = CapturedFrame(0, 0, FrameKind.PICKLE, 0, 0, pickle.dumps([1]))
    with pytest.raises(IllegalState, match="now chained behind"):
        inflight_share(plan, 0, {"0" * 32: [[lost], []]})


@pytest.mark.parametrize("kind", [FrameKind.ARROW, FrameKind.PICKLE])
@pytest.mark.parametrize("flag", [2, 4, 64, 128])
def test_a_batch_with_unknown_flags_is_refused(kind, flag):
    plan = reader(typed, 1)
    one = frame(plan, [1, 2], 0)
    with pytest.raises(ValueError, match=f"unknown flags .{flag:#x}.: it is damaged, or of a newer version"):
        decode(CapturedFrame(one.edge, one.writer, kind, flag, 0, one.body), plan.inputs[0].type)
