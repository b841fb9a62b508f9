"""Numbers under integer keys are held as columns: whatever a program does, they answer as a dict does. SPEC R1.3, R7.1"""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from headgate import Types, ValueStateDescriptor
from headgate.records.key_groups import KeyGroupRange, KeyHasher
from headgate.records.types import TypeMismatch
from headgate.state.addresses import NO_KEY, VOID
from headgate.state.backend import BackendSetup, SnapshotKind
from headgate.state.hashmap import column_values
from headgate.state.hashmap.backend import HashMapBackend
from headgate.state.hashmap.column_values import ColumnValue

TOTAL = ValueStateDescriptor("total", Types.LONG())
GROUP = KeyHasher(8)


def make(incremental):
    setup = BackendSetup(
        operator="sum",
        key_groups=KeyGroupRange(0, 7),
        max_parallelism=8,
        clock=lambda: 0,
        key_type=Types.LONG(),
        incremental=incremental,
        instance="i",
    )
    return HashMapBackend(setup)


keys = st.integers(0, 60) | st.integers(-(2**63), 2**63 - 1)
values = st.sampled_from([0, 0, 1]) | st.integers(-(2**63), 2**63 - 1)
access = st.tuples(st.sampled_from(["read", "write", "clear", "add"]), keys, values)
actions = st.one_of(
    st.tuples(st.just("batch"), st.lists(access, max_size=30)),
    st.tuples(st.just("strays"), st.tuples(st.lists(keys, max_size=10), st.lists(access, max_size=10))),
    st.tuples(st.just("apply"), st.integers(0, 5)),
    st.tuples(st.just("single"), st.lists(access, max_size=5)),
    st.tuples(st.just("clear many"), st.integers(0, 60)),
    st.tuples(st.just("checkpoint"), st.sampled_from(["confirm", "abort", "leave", "full"])),
    st.tuples(st.just("namespace"), keys),
)


class Pair:
    """A backend and the dict that it must equal."""

    def __init__(self, incremental):
        self.backend, self.model = make(incremental), {}
        self.state = self.backend.state(TOTAL)
        self.payloads, self.taken = {}, 0
        self.restorable = None

    def access(self, kind, key, value):
        if kind == "read":
            assert self.state.value() == self.model.get(key)
        elif kind == "write":
            self.state.update(value)
            self.model[key] = value
        elif kind == "add":
            total = ((self.state.value() or 0) + 1) % 1000
            assert total == (self.model.get(key, 0) + 1) % 1000
            self.state.update(total)
            self.model[key] = total
        else:
            self.state.clear()
            self.model.pop(key, None)

    def batch(self, accesses):
        self.strays(([key for _, key, _ in accesses], accesses))

    def strays(self, batch_and_accesses):
        """A batch of some keys in which others are used as well, as a function that selects keys itself would."""
        batch, accesses = batch_and_accesses
        backend = self.backend
        addresses = backend.prepare_keys(batch)
        groups = [GROUP.group(key) for key in addresses]
        arrays = (np.array(addresses, np.int64), np.array(groups, np.int32)) if len(accesses) % 2 else None
        backend.begin_batch(addresses, groups, arrays)
        for kind, key, value in accesses:
            backend.context.address, backend.context.group = key, GROUP.group(key)
            self.access(kind, key, value)
        backend.context.address = NO_KEY
        backend.end_batch()

    def single(self, accesses):
        for kind, key, value in accesses:
            self.backend.set_current_key(key)
            self.access(kind, key, value)
        self.backend.clear_current_key()

    def apply(self, every):
        """Change or clear state from outside, as the broadcast side of an operator does."""

        def change(key, state):
            assert state.value() == self.model[key]
            if every and key % every == 0:
                state.clear()
                del self.model[key]
            else:
                state.update(key % 7)
                self.model[key] = key % 7

        self.backend.apply_to_all_keys(TOTAL, VOID, change)

    def clear_many(self, below):
        self.batch([("clear", key, 0) for key in list(self.model) if key % 61 < below])

    def namespace(self, key):
        self.backend.set_current_key(key)
        self.backend.set_namespace("w")
        self.state.update(7)
        assert self.state.value() == 7
        self.state.clear()
        self.backend.clear_current_key()

    def checkpoint(self, what):
        self.taken += 1
        kind = SnapshotKind.FULL if what == "full" else SnapshotKind.CHECKPOINT
        run = self.backend.snapshot(self.taken, kind)
        expected = dict(self.model)
        found = {}
        for name, data in run:
            found[name] = found.get(name, b"") + data
        self.payloads |= found
        if what == "abort":
            self.backend.notify_aborted(self.taken)
            return
        if what != "leave":
            self.backend.notify_complete(self.taken)
        check(run.handle, self.payloads, expected)

    def check(self):
        assert set(self.backend.keys("total")) == set(self.model)
        assert self.backend.entry_count("total") == len(self.model)
        for key, value in self.model.items():
            self.backend.set_current_key(key)
            assert self.state.value() == value
        self.backend.clear_current_key()


def check(handle, payloads, expected):
    """A restore of the snapshot shows what was there when it was taken."""
    other = make(incremental=False)
    if handle is not None:
        other.restore([handle], lambda payload, offset, length: payloads[payload.id][offset : offset + length])
    state = other.state(TOTAL)
    assert set(other.keys("total")) == set(expected)
    for key, value in expected.items():
        other.set_current_key(key)
        assert state.value() == value


@pytest.mark.parametrize("few", [0, 8, 64], ids=["at once", "both", "one by one"])
@settings(max_examples=examples(80), deadline=None)
@given(incremental=st.booleans(), script=st.lists(actions, max_size=25))
def test_columns_answer_as_a_dict(few, incremental, script):
    with patch.object(column_values, "_FEW", few):
        pair = Pair(incremental)
        assert isinstance(pair.state, ColumnValue)
        for name, argument in script:
            getattr(pair, name.replace(" ", "_"))(argument)
        pair.check()


@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize(
    ("type", "value"), [(Types.LONG(), "x"), (Types.LONG(), 1 << 63), (Types.INT(), 1 << 31), (Types.DOUBLE(), "x")]
)
def test_a_value_that_does_not_fit_is_refused_with_its_key(few, type, value):
    with patch.object(column_values, "_FEW", few):
        backend = make(incremental=True)
        state = backend.state(ValueStateDescriptor("v", type))
        for stored in (1 if type != Types.DOUBLE() else 1.0, value):
            backend.begin_batch([3], [GROUP.group(3)], None)
            backend.context.address, backend.context.group = 3, GROUP.group(3)
            state.value()
            state.update(stored)
            backend.context.address = NO_KEY
            if stored is value:
                with pytest.raises(TypeMismatch, match="operator 'sum', state 'v', key 3"):
                    backend.end_batch()
            else:
                backend.end_batch()


@pytest.mark.parametrize("few", [0, 64])
def test_a_key_that_comes_back_with_zero_is_in_the_next_increment(few):  # SPEC R7.4
    with patch.object(column_values, "_FEW", few):
        pair = Pair(incremental=True)
        for accesses in ([("write", key, 5) for key in range(200)], [("clear", 7, 0)], [("write", 7, 0)]):
            pair.batch(accesses)
            pair.checkpoint("confirm")


@pytest.mark.parametrize("few", [0, 64])
def test_a_change_of_the_sign_of_zero_is_in_the_next_increment(few):  # SPEC R7.4
    with patch.object(column_values, "_FEW", few):
        backend, ratio = make(incremental=True), ValueStateDescriptor("ratio", Types.DOUBLE())
        state, payloads = backend.state(ratio), {}
        for number, value in enumerate((0.0, -0.0), 1):
            backend.begin_batch(list(range(100)), [GROUP.group(key) for key in range(100)], None)
            for key in range(100):
                backend.context.address, backend.context.group = key, GROUP.group(key)
                state.value()
                state.update(value)
            backend.context.address = NO_KEY
            backend.end_batch()
            run = backend.snapshot(number, SnapshotKind.CHECKPOINT)
            for name, data in run:
                payloads[name] = payloads.get(name, b"") + data
            backend.notify_complete(number)
        other = make(incremental=False)
        other.restore([run.handle], lambda payload, offset, length: payloads[payload.id][offset : offset + length])
        other.set_current_key(7)
        assert str(other.state(ratio).value()) == "-0.0"


def test_a_batch_of_more_records_than_16_bits_count():
    pair = Pair(incremental=True)
    pair.batch([("add", n % 70_001, 0) for n in range(140_000)])
    pair.check()
    pair.batch([("add", n % 70_001, 0) for n in range(140_000)])
    pair.check()


def test_slots_of_removed_keys_are_used_again():
    pair = Pair(incremental=False)
    for round in range(50):
        pair.batch([("write", round * 1000 + i, i) for i in range(1000)])
        pair.clear_many(61)
    pair.check()
    assert pair.backend.column_table(TOTAL).count < 5000


def test_slots_are_not_used_again_while_a_snapshot_reads_them():
    pair = Pair(incremental=False)
    pair.batch([("write", i, i) for i in range(3000)])
    expected = dict(pair.model)
    run = pair.backend.snapshot(1)
    pair.clear_many(61)
    pair.batch([("write", 10_000 + i, -1) for i in range(3000)])
    payloads = {}
    for name, data in run:
        payloads[name] = payloads.get(name, b"") + data
    check(run.handle, payloads, expected)
    pair.check()
