"""A backend against a plain dict, over random operations, snapshots, confirmations, restores and rescales."""

from __future__ import annotations

import copy
import math
import sys
import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from effort import examples
from headrace.records.key_groups import key_group, key_group_range
from headrace.state.addresses import VOID
from headrace.state.api import ListStateDescriptor, MapStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from headrace.state.backend import BackendSetup, SnapshotKind
from headrace.state.timers import TimeDomain
from namespaces import entry_count, select_namespace

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
from lab import BACKENDS

MAX = 8
KEYS = st.sampled_from([1, 1.0, True, (1.0, "x")])
NAMESPACES = st.sampled_from([None, None, (0, 10)])
VALUES = st.integers(0, 9)
ARGUMENTS = {
    "update": st.tuples(st.none() | VALUES),
    "extend": st.tuples(st.lists(VALUES, max_size=2), st.booleans()),
    "put": st.tuples(st.integers(0, 2), VALUES),
    "remove": st.tuples(st.integers(0, 2)),
    "add": st.tuples(VALUES),
    "clear": st.tuples(st.sampled_from("vlmr")),
    "merge": st.tuples(st.just((0, 10)), st.sampled_from([(0, 10), (5, 5)])),
    "maintain": st.tuples(st.sampled_from([1, 3, 1000])),
    "register": st.tuples(st.integers(0, 3)),
    "delete": st.tuples(st.integers(0, 3)),
    "fire": st.tuples(st.integers(0, 3)),
}
OPERATIONS = st.lists(
    st.one_of([st.tuples(st.just(name), KEYS, NAMESPACES, arguments) for name, arguments in ARGUMENTS.items()]),
    min_size=1,
    max_size=6,
)


def tagged(key):
    """A dict key that keeps 1, 1.0 and True apart."""
    return (tuple(map(tagged, key)),) if isinstance(key, tuple) else (type(key).__name__, key)


@dataclass(eq=False)
class Snapshot:
    checkpoint: int
    instances: int
    kind: SnapshotKind
    runs: list
    model: dict
    handles: list | None = None
    complete: bool = False


class StateMachine(RuleBasedStateMachine):
    """Subclasses name the backend."""

    backend_name = "hashmap"
    running = Bundle("running")
    acked = Bundle("acked")
    complete = Bundle("complete")

    @initialize(parallelism=st.integers(1, 3), typed=st.booleans(), incremental=st.sampled_from([True, True, False]))
    def start(self, parallelism, typed, incremental):
        self.incremental = incremental
        self.directory = tempfile.TemporaryDirectory()
        kind = "bigint" if typed else None
        self.value = ValueStateDescriptor("v", kind)
        self.list = ListStateDescriptor("l", kind)
        self.map = MapStateDescriptor("m", kind, kind)
        self.sum = ReducingStateDescriptor("r", lambda a, b: a + b, kind)
        self.instances = 0
        self.checkpoint = self.completed = 0
        self.payloads = {}
        self.last_used = {}
        self.model = {"v": {}, "l": {}, "m": {}, "r": {}, "t": {}}
        self.backends = self.open(parallelism)
        for number in range(40):  # a base that is large enough for increments
            self.update(f"bulk-{number}", None, number)

    def open(self, parallelism, handles=None, claim=False, counted=True):
        self.instances += counted
        backends = []
        for index in range(parallelism):
            directory = Path(tempfile.mkdtemp(dir=self.directory.name))
            setup = BackendSetup(
                "op",
                key_group_range(index, MAX, parallelism),
                MAX,
                lambda: 0,
                incremental=self.incremental,
                instance=f"{self.instances}-{index}",
                directory=directory,
            )
            backend = BACKENDS[self.backend_name](setup)
            backend.restore(handles or [], self.read, claim=claim)
            backends.append(backend)
        return backends

    def read(self, payload, offset, length):
        return self.payloads[payload.id][offset : offset + length]

    def at(self, key, namespace):
        """Select a key; its backend, and its address in the model."""
        group = key_group(key, MAX)
        backend = next(one for one in self.backends if group in one.setup.key_groups)
        backend.set_current_key(key)
        if namespace is not None:
            select_namespace(backend, namespace)
        return backend, (tagged(key), namespace)

    # --- operations

    @rule(operations=OPERATIONS)
    def write(self, operations):
        for operation, key, namespace, arguments in operations:
            getattr(self, operation)(key, namespace, *arguments)

    def update(self, key, namespace, value):
        backend, place = self.at(key, namespace)
        backend.state(self.value).update(value)
        self.model["v"][place] = value
        if value is None:
            del self.model["v"][place]

    def extend(self, key, namespace, values, replace):
        backend, place = self.at(key, namespace)
        state = backend.state(self.list)
        new = values if replace else self.model["l"].get(place, []) + values
        if replace:
            state.update(values)
        elif len(values) == 1:
            state.add(values[0])
        else:
            state.add_all(values)
        self.model["l"][place] = new
        if not new:
            del self.model["l"][place]

    def put(self, key, namespace, entry, value):
        backend, place = self.at(key, namespace)
        backend.state(self.map).put(entry, value)
        self.model["m"].setdefault(place, {})[entry] = value

    def remove(self, key, namespace, entry):
        backend, place = self.at(key, namespace)
        backend.state(self.map).remove(entry)
        entries = self.model["m"].get(place, {})
        entries.pop(entry, None)
        if not entries:
            self.model["m"].pop(place, None)

    def add(self, key, namespace, value):
        backend, place = self.at(key, namespace)
        backend.state(self.sum).add(value)
        self.model["r"][place] = self.model["r"].get(place, 0) + value

    def clear(self, key, namespace, name):
        backend, place = self.at(key, namespace)
        descriptor = {"v": self.value, "l": self.list, "m": self.map, "r": self.sum}[name]
        backend.state(descriptor).clear()
        self.model[name].pop(place, None)

    def merge(self, key, _, source, into):
        backend, _ = self.at(key, None)
        for descriptor, name in ((self.list, "l"), (self.sum, "r")):
            backend.merge_namespaces(descriptor, into, [source])
            model = self.model[name]
            if source != into and (tagged(key), source) in model:
                moved = model.pop((tagged(key), source))
                there = (tagged(key), into)
                model[there] = model[there] + moved if there in model else moved

    def register(self, key, namespace, time):
        backend, place = self.at(key, namespace)
        context = backend.context
        fresh = backend.timers.register(TimeDomain.EVENT, time, context.address, context.group)
        assert fresh == ((*place, time) not in self.model["t"])
        self.model["t"][*place, time] = True

    def delete(self, key, namespace, time):
        backend, place = self.at(key, namespace)
        context = backend.context
        found = backend.timers.delete(TimeDomain.EVENT, time, context.address, context.group)
        assert found == (self.model["t"].pop((*place, time), None) is not None)

    def fire(self, key, namespace, until):
        backend, _ = self.at(key, namespace)
        timer = backend.timers.pop_due(TimeDomain.EVENT, until)
        if timer is not None:
            space = None if timer.namespace is VOID else timer.namespace
            del self.model["t"][tagged(backend.key_at(timer.address)), space, timer.timestamp]

    # --- upkeep

    def maintain(self, key, namespace, budget):
        for backend in self.backends:
            backend.maintain(budget)

    @rule()
    def batch(self):
        for backend in self.backends:
            backend.begin_batch([], [])
            backend.end_batch()

    # --- snapshots: taken, acknowledged, then confirmed or aborted, in any order and interleaved with everything

    @rule(target=running, kind=st.sampled_from([SnapshotKind.CHECKPOINT] * 4 + list(SnapshotKind)))
    def trigger(self, kind):
        self.checkpoint += 1
        runs = [backend.snapshot(self.checkpoint, kind) for backend in self.backends]
        return Snapshot(self.checkpoint, self.instances, kind, runs, copy.deepcopy(self.model))

    def take(self, run, steps):
        for payload, data in islice(run, steps):
            self.payloads[payload] = self.payloads.get(payload, b"") + data

    @rule(snapshot=running, steps=st.integers(1, 4))
    def step(self, snapshot, steps):
        for run in snapshot.runs:
            self.take(run, steps)

    @rule(target=acked, snapshot=consumes(running))
    def acknowledge(self, snapshot):
        if snapshot.instances != self.instances:
            return snapshot  # a restore came between: its backends are gone, and it has no handles
        if snapshot.checkpoint < self.completed and snapshot.kind is not SnapshotKind.SAVEPOINT:
            self.abort(snapshot)  # subsumed by a newer one (R5.1)
            return snapshot
        for run in snapshot.runs:
            self.take(run, None)
        snapshot.handles = [run.handle for run in snapshot.runs if run.handle is not None]
        for handle in snapshot.handles:
            for payload in handle.payloads():
                # As the shared-state registry does it (R7.5): in use up to the newest checkpoint that holds it.
                last = math.inf if snapshot.kind is SnapshotKind.SAVEPOINT else snapshot.checkpoint
                self.last_used[payload.id] = max(self.last_used.get(payload.id, 0), last)
        self.check_content(snapshot)
        return snapshot

    def check_content(self, snapshot):
        backends = self.open(1, snapshot.handles, counted=False)
        assert self.content(backends) == {name: snapshot.model[name] for name in "vlmr"}
        assert backends[0].timers.count(TimeDomain.EVENT) == len(snapshot.model["t"])
        backends[0].dispose()

    @rule(target=complete, snapshot=consumes(acked))
    def confirm(self, snapshot):
        if snapshot.handles is None or snapshot.instances != self.instances:
            return snapshot
        if snapshot.checkpoint < self.completed and snapshot.kind is not SnapshotKind.SAVEPOINT:
            self.abort(snapshot)
            return snapshot
        if snapshot.kind is not SnapshotKind.SAVEPOINT:
            self.completed = snapshot.checkpoint
            for backend in self.backends:
                backend.notify_complete(snapshot.checkpoint)
            # One checkpoint is retained: what only older ones use is deleted.
            for payload in [one for one, last in self.last_used.items() if last < snapshot.checkpoint]:
                self.payloads.pop(payload, None)
        self.check_content(snapshot)
        snapshot.complete = True
        return snapshot

    @rule(operations=OPERATIONS, ending=st.sampled_from(["confirm", "confirm", "abort"]))
    def checkpoint_beside_writes(self, operations, ending):
        """The usual course in one step, so that chains grow long."""
        snapshot = self.trigger(SnapshotKind.CHECKPOINT)
        self.write(operations)
        getattr(self, ending)(self.acknowledge(snapshot))

    @rule(snapshot=consumes(running) | consumes(acked))
    def abort(self, snapshot):
        if snapshot.instances == self.instances:
            for backend in self.backends:
                backend.notify_aborted(snapshot.checkpoint)

    @rule(operations=OPERATIONS, parallelism=st.integers(1, 3))
    def fail_over(self, operations, parallelism):
        """Stop with a checkpoint, go on from it with another parallelism."""
        snapshot = self.acknowledge(self.trigger(SnapshotKind.CHECKPOINT))
        self.restore(self.confirm(snapshot), parallelism, claim=True)
        self.write(operations)

    @rule(snapshot=complete, parallelism=st.integers(1, 3), claim=st.booleans())
    def restore(self, snapshot, parallelism, claim):
        latest = snapshot.checkpoint == self.completed or snapshot.kind is SnapshotKind.SAVEPOINT
        if not snapshot.complete or not latest:
            return
        for backend in self.backends:
            backend.dispose()
        self.model = copy.deepcopy(snapshot.model)
        self.completed = self.checkpoint
        self.backends = self.open(
            parallelism, snapshot.handles, claim=claim and snapshot.kind is not SnapshotKind.SAVEPOINT
        )

    # --- what must hold

    def content(self, backends):
        readers = {
            "v": (self.value, lambda s: s.value()),
            "l": (self.list, lambda s: s.get()),
            "m": (self.map, lambda s: dict(s.items())),
            "r": (self.sum, lambda s: s.get()),
        }
        found = {}
        for name, (descriptor, read) in readers.items():
            found[name] = {}
            for backend in backends:
                state = backend.state(descriptor)
                for namespace in (None, (0, 10), (5, 5)):
                    for key in backend.keys(name, *([] if namespace is None else [namespace])):
                        backend.set_current_key(key)
                        if namespace is not None:
                            select_namespace(backend, namespace)
                        found[name][tagged(key), namespace] = read(state)
                backend.clear_current_key()
            assert sum(entry_count(backend, name) for backend in backends) == len(found[name])
        return found

    @precondition(lambda self: hasattr(self, "backends"))
    @invariant()
    def same_as_model(self):
        if all(backend._handles for backend in self.backends):  # else leave restored state untouched for a while
            assert self.content(self.backends) == {name: self.model[name] for name in "vlmr"}
        assert sum(backend.timers.count(TimeDomain.EVENT) for backend in self.backends) == len(self.model["t"])

    def teardown(self):
        if hasattr(self, "directory"):
            for backend in getattr(self, "backends", ()):
                backend.dispose()  # a database that is open may still write into its directory
            self.directory.cleanup()


@pytest.mark.parametrize("name", BACKENDS)
def test_state_machine(name):
    number = 25 if name == "hashmap" else 12  # most of the time is spent on opening databases, forty in each
    machine = type("Machine", (StateMachine,), {"backend_name": name})
    machine.TestCase.settings = settings(
        max_examples=examples(number), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine.TestCase().runTest()
