"""Second copies of keyed state on the worker's host: SPEC R7.7, LocalRecoveryITCase."""

import shutil
from concurrent.futures import Executor, Future
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from headrace import KeyedProcessFunction, Types, ValueStateDescriptor
from headrace.checkpoint.barriers.instructions import AlignmentMetrics
from headrace.checkpoint.types import Barrier, CheckpointOptions
from headrace.control.deployment import VertexRestore, WorkerStorage
from headrace.control.messages import AcknowledgeCheckpoint
from headrace.driver.progress import restore_bar
from headrace.records.key_groups import KeyGroupRange
from headrace.state.backend import BackendSetup
from headrace.state.hashmap.backend import HashMapBackend
from headrace.state.operator import OperatorStateBackend
from headrace.state.rocksdb import RocksDBBackend
from headrace.storage.byte_handles import Placeholder
from headrace.storage.layout import AttemptId
from headrace.storage.shared import SharedStateRegistry
from headrace.worker.operators.base import OperatorSnapshot
from headrace.worker.snapshots.local_copies import LocalCopies
from headrace.worker.snapshots.restore import RestoreProgress, read_restore
from headrace.worker.snapshots.snapshot_writer import SnapshotWriter
from headrace.worker.snapshots.taken_snapshots import SnapshotInProgress
from rig import plan_of, vertex_plan

KEYS = 2000
TOTAL = ValueStateDescriptor("total", Types.LONG())


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def keyed(env):
    env.from_sequence(1, 9).key_by(lambda x: x).process(Pass()).name("keyed").print()


class AtOnce(Executor):
    def submit(self, fn, /, *args, **kwargs):
        fn(*args, **kwargs)
        return Future()

    def shutdown(self, wait=True, *, cancel_futures=False):
        pass


class Rig:
    """A subtask's backend and writer; `take` makes a checkpoint, `restore` reads it into a new backend."""

    def __init__(self, tmp_path: Path, backend: str) -> None:
        self.tmp, self.name = tmp_path, backend
        self.plan = vertex_plan(plan_of(keyed), "keyed")
        self.operator = self.plan.vertex.head.id
        self.copies = LocalCopies([str(tmp_path / "copies")], "a" * 32, [self.operator], 0, 1)
        self.sent: list[object] = []
        self.registry = SharedStateRegistry()
        for name in ("chk", "shared"):
            (tmp_path / name).mkdir()
        storage = WorkerStorage(AttemptId(1), str(tmp_path / "shared"), 0)
        self.writer = SnapshotWriter(storage, "v1-s0", self.sent.append, executor=AtOnce(), copies=self.copies)
        self.backend = self.make("first")

    def make(self, name: str):
        setup = BackendSetup(
            operator="keyed",
            key_groups=KeyGroupRange(0, 127),
            max_parallelism=128,
            clock=lambda: 0,
            key_type=Types.LONG(),
            incremental=True,
            instance=name,
            directory=self.tmp / name,
        )
        return (RocksDBBackend if self.name == "rocksdb" else HashMapBackend)(setup)

    def put(self, keys, value: int) -> None:
        state = self.backend.state(TOTAL)
        for key in keys:
            self.backend.set_current_key(key)
            state.update(value)

    def take(self, checkpoint_id: int) -> tuple:
        options = CheckpointOptions(location=str(self.tmp / "chk"))
        state = OperatorStateBackend("keyed", None).snapshot()
        snapshot = OperatorSnapshot(self.plan.vertex.head, 0, state, self.backend.snapshot(checkpoint_id))
        self.writer.start(SnapshotInProgress(Barrier(checkpoint_id, 0, options), [snapshot], AlignmentMetrics()))
        ack = self.sent.pop()
        assert isinstance(ack, AcknowledgeCheckpoint), ack
        pieces = ack.state[self.operator]
        pieces = self.registry.register_pieces(self.operator, pieces, checkpoint_id)
        assert not any(isinstance(part.handle, Placeholder) for piece in pieces for part in piece.parts)
        self.backend.notify_complete(checkpoint_id)
        self.writer.confirmed(checkpoint_id)
        return pieces

    def restore(self, checkpoint_id: int, pieces: tuple, name: str) -> tuple[dict[int, int], RestoreProgress]:
        given = VertexRestore(checkpoint_id, 1, 128, {self.operator: [pieces]}, claim=False)
        progress = RestoreProgress()
        share = read_restore(given, 0, self.plan, copies=self.copies, progress=progress)
        backend = self.make(name)
        backend.restore(share.operators[self.operator].keyed, share.read)
        state = backend.state(TOTAL)
        found = {}
        for key in range(KEYS):
            backend.set_current_key(key)
            found[key] = state.value()
        backend.dispose()
        return found, progress

    def copied(self) -> list[Path]:
        return sorted(path for path in (self.tmp / "copies").rglob("*") if path.is_file())


@pytest.fixture(params=["hashmap", "rocksdb"])
def rig(tmp_path, request):
    rig = Rig(tmp_path, request.param)
    yield rig
    rig.backend.dispose()


def test_a_restore_reads_the_copy(rig):  # SPEC R7.7
    rig.put(range(KEYS), 1)
    rig.take(1)
    rig.put(range(10), 2)
    pieces = rig.take(2)  # an increment: the copy has what it builds on as well
    found, progress = rig.restore(2, pieces, "second")
    assert found == {key: 2 if key < 10 else 1 for key in range(KEYS)}
    assert progress.done == progress.local == progress.total > 0
    assert {path.parent.name for path in rig.copied()} == {"2"}  # only the newest is kept


def test_a_copy_that_is_gone_is_read_from_storage(rig):  # SPEC R7.7
    rig.put(range(KEYS), 1)
    pieces = rig.take(1)
    shutil.rmtree(rig.tmp / "copies")
    found, progress = rig.restore(1, pieces, "second")
    assert set(found.values()) == {1}
    assert progress.local == 0 < progress.done


def test_a_damaged_copy_is_read_from_storage_and_the_others_are_not(rig):  # SPEC R7.7: per part
    rig.put(range(KEYS), 1)
    pieces = rig.take(1)
    largest = max(rig.copied(), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.unlink()  # it may be linked to a file in use
    largest.write_bytes(data)
    found, progress = rig.restore(1, pieces, "second")
    assert set(found.values()) == {1}
    assert progress.local < progress.done


def test_a_copy_that_cannot_be_written_fails_no_checkpoint(rig):  # SPEC R7.7
    (rig.tmp / "copies").write_text("in the way")
    rig.put(range(KEYS), 1)
    pieces = rig.take(1)
    found, progress = rig.restore(1, pieces, "second")
    assert set(found.values()) == {1}
    assert progress.local == 0


def test_an_aborted_checkpoint_leaves_no_copy(rig):
    rig.put(range(KEYS), 1)
    rig.take(1)
    rig.copies.begin(2, rig.operator).commit()
    rig.writer.aborted(2)
    assert {path.parent.name for path in rig.copied()} == {"1"}


def test_a_subtask_that_has_finished_leaves_nothing_but_copies_of_other_operators(rig):
    rig.put(range(KEYS), 1)
    rig.take(1)
    other = LocalCopies([str(rig.tmp / "copies")], "a" * 32, ["another"], 0, 1)
    other.remove()  # a source may finish long before the operators behind it
    assert rig.copied()
    rig.writer.close(finished=True)
    assert not list((rig.tmp / "copies").rglob("a" * 32))


def test_the_bar_shows_what_is_back():
    from rich.console import Console

    from headrace.control.messages import Metrics

    one = Metrics(0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 20, 4 << 20)
    bar = restore_bar([one, one])
    console = Console(width=100, record=True, file=StringIO())
    console.print(bar)
    assert "restoring" in (text := console.export_text())
    assert "2.0 MiB of 8.0 MiB" in text
    assert restore_bar([msgspec.structs.replace(one, restored_bytes=4 << 20)]) is None
    assert restore_bar([]) is None
