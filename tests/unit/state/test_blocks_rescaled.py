"""Numbers in blocks through changes of the parallelism, with removals, aborted checkpoints and unopened states. SPEC R3.4"""

import random

import pytest

from headrace.checkpoint.handles import read_inline
from headrace.records.key_groups import key_group_range
from headrace.records.types import Types
from headrace.state.api import ValueStateDescriptor
from headrace.state.backend import BackendSetup, SnapshotKind
from headrace.state.rocksdb import RocksDBBackend, numbers

GROUPS = 32
NUMBER = ValueStateDescriptor("n", "bigint")


class Subtasks:
    """The backends of all subtasks of an operator."""

    def __init__(self, parallelism, handles):
        self.backends = []
        for index in range(parallelism):
            mine = key_group_range(index, GROUPS, parallelism)
            setup = BackendSetup("op", mine, GROUPS, clock=lambda: 0, key_type=Types.LONG(), incremental=True)
            backend = RocksDBBackend(setup)
            needed = [one for one in handles if one.first_group <= mine.end and mine.start <= one.last_group]
            if needed:
                backend.restore_handles(needed, read_inline, claim=False)
            self.backends.append(backend)

    def open(self):
        self._states = [backend.state(NUMBER) for backend in self.backends]
        return self

    def of(self, key):
        """The state of a key, which is the current one."""
        for backend, state in zip(self.backends, self._states, strict=True):
            if backend.key_group_of(key) in backend.setup.key_groups:
                backend.set_current_key(key)
                return state
        raise AssertionError(f"no subtask has key {key}")

    def checkpoint(self, number, completed):
        for backend in self.backends:
            backend.snapshot(number).finish()
            (backend.notify_complete if completed else backend.notify_aborted)(number)

    def savepoint(self, number):
        handles = [backend.snapshot(number, SnapshotKind.SAVEPOINT).finish() for backend in self.backends]
        self.dispose()
        return [handle for handle in handles if handle is not None]

    def content(self):
        found = {key: self.of(key).value() for backend in self.backends for key in list(backend.keys("n"))}
        self.dispose()
        return found

    def dispose(self):
        for backend in self.backends:
            backend.dispose()


def change(subtasks, expected, rng):
    """Read, set and remove numbers of random keys."""
    for _ in range(rng.randrange(300)):
        key = rng.randrange(-50, 150)
        state = subtasks.of(key)
        assert state.value() == expected.get(key)
        if rng.random() < 0.3:
            state.clear()
            expected.pop(key, None)
        else:
            expected[key] = rng.randrange(1000)
            state.update(expected[key])


@pytest.mark.parametrize("renewed", [False, True], ids=["", "written-anew-at-each-checkpoint"])
@pytest.mark.parametrize("seed", range(6))
def test_each_key_keeps_its_number_whatever_the_parallelism(seed, renewed, monkeypatch):
    if renewed:
        monkeypatch.setattr(numbers, "_FEW_IN_BLOCKS", 0)
        monkeypatch.setattr(numbers, "_RENEW", 1)
    rng, expected, handles, number = random.Random(seed), {}, [], 0
    for _ in range(5):
        subtasks = Subtasks(rng.randrange(1, 5), handles)
        if not handles or rng.random() > 0.3:  # else it is stored again without being opened
            subtasks.open()
            for _ in range(rng.randrange(1, 4)):
                change(subtasks, expected, rng)
                if rng.random() < 0.5:
                    number += 1
                    subtasks.checkpoint(number, completed=rng.random() < 0.5)
        number += 1
        handles = subtasks.savepoint(number)
    assert Subtasks(3, handles).open().content() == expected
