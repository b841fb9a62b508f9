"""Snapshots of the rocksdb backend in a thread of their own, as the runtime takes them, while records go on."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from headrace.records.key_groups import KeyGroupRange
from headrace.state.api import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from headrace.state.backend import BackendSetup
from headrace.state.rocksdb import MemoryBudget, RocksDBBackend, writeback
from namespaces import entry_count

V = ValueStateDescriptor("v", "bigint")
L = ListStateDescriptor("l", "bigint")
M = MapStateDescriptor("m", "bigint", "bigint")


class Model:
    """What the state should be."""

    def __init__(self):
        self.values, self.lists, self.maps = {}, {}, {}

    def copy(self):
        found = Model()
        found.values = dict(self.values)
        found.lists = {key: list(elements) for key, elements in self.lists.items()}
        found.maps = {key: dict(entries) for key, entries in self.maps.items()}
        return found


def change(backend, model, chance, keys):
    """One random operation on both, with a look at what is there."""
    key = chance.randrange(keys)
    backend.set_current_key(key)
    number = chance.randrange(1000)
    kind = chance.randrange(8)
    if kind <= 2:
        state = backend.state(V)
        assert state.value() == model.values.get(key), key
        if number % 10 == 0:
            state.clear()
            model.values.pop(key, None)
        else:
            state.update(number)
            model.values[key] = number
    elif kind <= 4:
        state = backend.state(L)
        assert state.get() == model.lists.get(key, []), key
        if number % 40 == 0:
            state.update([number])
            model.lists[key] = [number]
        else:
            state.add(number)
            model.lists.setdefault(key, []).append(number)
    else:
        state = backend.state(M)
        entries = model.maps.setdefault(key, {})
        if number % 50 == 0:
            state.clear()
            entries.clear()
        elif number % 3:
            state.put(number % 20, number)
            entries[number % 20] = number
        else:
            state.remove(number % 20)
            entries.pop(number % 20, None)
        assert dict(state.items()) == entries, key
        assert state.get(5) == entries.get(5), key
        assert state.is_empty() == (not entries), key


def check(backend, model, keys):
    for key in range(keys):
        backend.set_current_key(key)
        assert backend.state(V).value() == model.values.get(key)
        assert backend.state(L).get() == model.lists.get(key, [])
        assert dict(backend.state(M).items()) == model.maps.get(key, {})
    assert entry_count(backend, "v") == len(model.values)
    assert entry_count(backend, "l") == len(model.lists)
    assert entry_count(backend, "m") == sum(1 for entries in model.maps.values() if entries)


@pytest.mark.parametrize("seed", range(3))
def test_records_go_on_while_snapshots_are_written(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(writeback, "BATCH_ROWS", 16)  # many small steps, so that the threads meet often
    monkeypatch.setattr(writeback, "_MIN_ENTRIES", 8)
    monkeypatch.setattr(MemoryBudget.shared(), "cache_share", lambda: 30_000)
    settle = writeback._LayerBatch._settle

    def settle_late(batch):
        time.sleep(0.0003)  # the other thread runs while rows are in the database and still in their layer
        settle(batch)

    monkeypatch.setattr(writeback._LayerBatch, "_settle", settle_late)
    chance = random.Random(seed)
    setup = BackendSetup("op", KeyGroupRange(0, 127), 128, lambda: 0, incremental=True, directory=tmp_path / "a")
    backend, model, keys = RocksDBBackend(setup), Model(), 150
    for descriptor in (V, L, M):
        backend.state(descriptor)
    taken: list[tuple[Model, Future]] = []
    payloads: dict[str, bytes] = {}
    with ThreadPoolExecutor(1) as pool:
        for number in range(1, 13):
            for step in range(400):
                change(backend, model, chance, keys)
                if step % 25 == 0:
                    backend.end_batch()
                if step % 90 == 0:
                    backend.maintain(20)
            run = backend.snapshot(number)
            taken.append((model.copy(), pool.submit(run.finish)))
            done = [one for one, (_, future) in enumerate(taken, 1) if future.done()]
            if done and number % 3 == 0:
                backend.notify_complete(done[-1])
            if number % 5 == 0:
                backend.notify_aborted(number)
        check(backend, model, keys)
    for number, (expected, future) in enumerate(taken, 1):
        if future.exception() is not None:
            assert number % 5 == 0, future.exception()
            continue
        handle = future.result()
        payloads.update({payload.id: payload.data for payload in handle.payloads() if payload.data is not None})
        if number in (1, 4, 8, 12):
            restored = RocksDBBackend(replace(setup, directory=tmp_path / f"restored-{number}"))
            restored.restore([handle], lambda payload, at, size: payloads[payload.id][at : at + size])
            check_all(restored, expected, keys)
    backend.dispose()


def check_all(backend, model, keys):
    for descriptor in (V, L, M):
        backend.state(descriptor)
    check(backend, model, keys)
    backend.dispose()


def test_disposing_while_a_snapshot_is_written(tmp_path):
    for attempt in range(5):
        setup = BackendSetup("op", KeyGroupRange(0, 127), 128, lambda: 0, directory=tmp_path / str(attempt))
        backend = RocksDBBackend(setup)
        for key in range(3000):
            backend.set_current_key(key)
            backend.state(V).update(key)
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(backend.snapshot(1).finish)
            if attempt % 2:
                backend.end_batch()
            backend.dispose()
        assert future.done()
        assert not (tmp_path / str(attempt)).exists()
