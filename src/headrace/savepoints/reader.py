"""Read any checkpoint or savepoint: its operators and states, and their rows as tables.

    snapshot = StateSnapshotReader.open("/checkpoints/.../chk-7")
    for state in snapshot.states():
        print(state.operator, state.name, state.kind)
    for batch in snapshot.read("count", "total"):
        ...

Canonical savepoints are read directly; of native snapshots each subtask's part is restored into a backend of its kind, in
a temporary directory. It runs in the user's process, and in Spark's workers for the data source.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.checkpoint.handles import KeyedStateHandle, StateMeta, decode_handle
from headrace.control.operator_state import operator_state_of
from headrace.errors import IllegalState, InvalidArgument, StorageError
from headrace.html_tables import html_table
from headrace.records.key_groups import KeyGroupRange
from headrace.records.types import TypeInformation
from headrace.state.backend import BackendSetup, KeyedStateBackend
from headrace.state.hashmap.backend import HashMapBackend
from headrace.state.operator import StateSnapshot, decode_elements
from headrace.state.parquet.keyed import CANONICAL, read_tables, stored_tables, table_schema
from headrace.state.parquet.operator import operator_schema, operator_table
from headrace.state.schema import widest_form
from headrace.storage import manifest as mf
from headrace.storage.objects import ObjectStore
from headrace.storage.published_snapshots import Snapshot, load_snapshot, require_intact
from headrace.storage.reader import SnapshotReader
from headrace.storage.remote import open_store
from headrace.worker.snapshots.restore import Payloads

__all__ = ["StateInfo", "StateSnapshotReader", "TablePart"]


@dataclass(frozen=True, slots=True)
class StateInfo:
    """One state of one operator."""

    operator_id: str
    operator: str
    uid: str | None
    name: str
    kind: str  # value, list, map, reducing, aggregating, timers, raw; split list, union list, broadcast map
    schema: pa.Schema
    backend: str

    @property
    def keyed(self) -> bool:
        return "key_group" in self.schema.names


@dataclass(frozen=True, slots=True)
class TablePart:
    """The part of a state in one old subtask: the unit that is read at once. It is plain data that can be pickled."""

    path: str
    operator_id: str
    state: str
    subtask: int
    groups: tuple[int, int] | None = None  # key groups of interest, of keyed state
    schema: pa.Schema | None = None  # in which its rows are given; None: as they are


class StateSnapshotReader:
    """Reads one checkpoint or savepoint."""

    def __init__(self, snapshot: Snapshot, store: ObjectStore) -> None:
        self.snapshot, self.manifest, self._store = snapshot, snapshot.manifest, store

    @classmethod
    def open(cls, path: str) -> StateSnapshotReader:
        """Open a snapshot by its directory or its `_metadata`."""
        store = open_store()
        return cls(load_snapshot(store, path), store)

    def _repr_html_(self) -> str:
        """Return the states as HTML for a notebook, without reading them."""
        manifest = self.manifest
        kind = f"{manifest.type.value} {manifest.checkpoint_id}"
        rows = [
            [info.operator, info.uid, info.name, info.kind, ", ".join(f"{one.name} {one.type}" for one in info.schema)]
            for info in self.states()
        ]
        size = sum(operator.size for operator in manifest.operators)
        title = f"{kind} of job '{manifest.job_name}', {size:,} bytes, {self.snapshot.directory}"
        return html_table(title, ["operator", "uid", "state", "kind", "columns"], rows)

    def verify(self) -> None:
        """Read every file and compare checksums; CorruptState names what is damaged."""
        require_intact(self._store, self.snapshot)

    # --- operators and states ----------------------------------------------------------------------------------------------

    def operator(self, wanted: str) -> mf.OperatorManifest:
        """Return an operator by uid, name or the beginning of the id; InvalidArgument lists the operators."""
        operators = self.manifest.operators
        found = (
            [op for op in operators if op.uid == wanted]
            or [op for op in operators if op.name == wanted]
            or [op for op in operators if wanted and op.id.startswith(wanted)]
        )
        if len(found) == 1:
            return found[0]
        stored = [op for op in operators if any(subtask.pieces for subtask in op.subtasks)]
        known = ", ".join(f"'{op.uid or op.name}' ({op.id[:8]})" for op in stored)
        problem = "has no operator" if not found else f"has {len(found)} operators"
        raise InvalidArgument(
            "HR-3008", f"'{self.snapshot.directory}' {problem} '{wanted}'; it has state of {known or 'none'}"
        )

    def states(self) -> list[StateInfo]:
        """Every state, by operator."""
        return [info for operator in self.manifest.operators for info in self._states_of(operator)]

    def _states_of(self, operator: mf.OperatorManifest) -> list[StateInfo]:
        found: dict[str, StateInfo] = {}

        def add(name: str, kind: str, schema: pa.Schema, backend: str) -> None:
            found.setdefault(name, StateInfo(operator.id, operator.name, operator.uid, name, kind, schema, backend))

        for name, (forms, key_type, backend) in self._forms(operator).items():
            try:
                form = widest_form(operator.name, forms)
            except IllegalState:  # an error when it is read
                form = forms[0]
            add(name, form.kind, table_schema(form, key_type), backend)
        for subtask in operator.subtasks:
            for state, types in self._operator_states(subtask):
                add(state.name, str(state.mode), operator_schema(types), "operator state")
        return list(found.values())

    def _forms(self, operator: mf.OperatorManifest) -> dict[str, tuple[list[StateMeta], TypeInformation, str]]:
        """The keyed states of an operator: the forms in which subtasks have stored each, the type of keys, the backend."""
        found: dict[str, tuple[list[StateMeta], TypeInformation, str]] = {}
        for subtask in operator.subtasks:
            for piece in subtask.pieces:
                if piece.kind is mf.PieceKind.KEYED:
                    handle = decode_handle(piece.description)
                    for meta in _metas(handle):
                        forms = found.setdefault(meta.name, ([], handle.key_type.type_info(), handle.backend))[0]
                        if meta not in forms:
                            forms.append(meta)
        return found

    def _operator_states(
        self, subtask: mf.SubtaskManifest
    ) -> Iterator[tuple[StateSnapshot, tuple[TypeInformation, ...]]]:
        left = operator_state_of(SnapshotReader(self._store), subtask.pieces)
        for state in left.states if left is not None else ():
            yield state, tuple(type.type_info() for type in state.types)

    def state(self, operator: str, name: str) -> StateInfo:
        """One state; InvalidArgument lists the states of the operator."""
        wanted = self.operator(operator)
        mine = [info for info in self.states() if info.operator_id == wanted.id]
        for info in mine:
            if info.name == name:
                return info
        known = ", ".join(f"'{info.name}' ({info.kind})" for info in mine)
        raise InvalidArgument("HR-3008", f"operator '{operator}' has no state '{name}'; it has {known or 'none'}")

    # --- rows -------------------------------------------------------------------------------------------------------

    def parts(self, operator: str, name: str, groups: KeyGroupRange | None = None) -> list[TablePart]:
        """Return the parts with any of the key groups."""
        info = self.state(operator, name)
        stored = self.operator(info.operator_id)
        if info.keyed:
            widest_form(stored.name, self._forms(stored)[name][0])
        found = []
        for subtask in stored.subtasks:
            place = self.snapshot.directory, info.operator_id, name, subtask.index
            if not info.keyed:
                found.append(TablePart(*place))
            for piece in subtask.pieces if info.keyed else ():
                if piece.kind is mf.PieceKind.KEYED and piece.key_groups is not None:
                    common = piece.key_groups if groups is None else piece.key_groups.intersect(groups)
                    if len(common):
                        found.append(TablePart(*place, (common.start, common.end), info.schema))
        return found

    def read(self, operator: str, name: str, groups: KeyGroupRange | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a state, in some key groups if they are given."""
        for part in self.parts(operator, name, groups):
            yield from self.read_part(part)

    def read_part(self, part: TablePart) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        operator = next(op for op in self.manifest.operators if op.id == part.operator_id)
        subtask = next(one for one in operator.subtasks if one.index == part.subtask)
        if part.groups is None:
            for state, types in self._operator_states(subtask):
                if state.name == part.state:
                    yield from operator_table(decode_elements(state, types), types, subtask.index).to_batches()
            return
        groups = KeyGroupRange(*part.groups)
        for piece in subtask.pieces:
            if piece.kind is mf.PieceKind.KEYED:
                handle = decode_handle(piece.description)
                for meta, batches in self._tables(piece, handle, groups, part.state):
                    if meta.name == part.state:
                        yield from (_in_form(batch, part.schema) for group, batch in batches if group in groups)

    def _tables(
        self, piece: mf.StatePiece, handle: KeyedStateHandle, groups: KeyGroupRange, state: str
    ) -> Iterator[tuple[StateMeta, Iterable[tuple[int, pa.RecordBatch]]]]:
        """Yield the states of one subtask's keyed state, as tables."""
        payloads = Payloads(self._store)
        for part in piece.parts:
            payloads.add(part)
        if handle.backend == CANONICAL:
            files = {file.name: file.payload for file in handle.files}
            for table in stored_tables(handle):
                if table.meta.name == state:
                    payload = files[table.file]
                    yield table.meta, _parquet_rows(payloads.read(payload, 0, payload.size), table.groups, groups)
            return
        with tempfile.TemporaryDirectory(prefix="headrace-read-") as directory:
            key_type, path = handle.key_type.type_info(), Path(directory) / "db"
            setup = BackendSetup(
                "(reader)", groups, handle.max_parallelism, lambda: 0, key_type, directory=path, migrate_ttl=True
            )
            backend = _backend(handle.backend)(setup)
            try:
                backend.restore([handle], payloads.read)
                yield from read_tables(backend, state)
            finally:
                backend.dispose()

    # --- files -------------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, int]:
        """Return the files that a restore reads, with the bytes it needs of each."""
        return {path: sum(one.length for one in segments) for path, segments in self.snapshot.files().items()}


def _backend(name: str) -> type[KeyedStateBackend]:
    if name == "hashmap":
        return HashMapBackend
    if name == "rocksdb":
        from headrace.state.rocksdb import RocksDBBackend

        return RocksDBBackend
    raise StorageError(
        "HR-2107", f"the snapshot was written by a state backend '{name}' that this version does not support"
    )


def _metas(handle: KeyedStateHandle) -> list[StateMeta]:
    """Return the states of a keyed handle, without reading any of them."""
    if handle.backend == CANONICAL:
        found = [table.meta for table in stored_tables(handle)]
    elif handle.segments:
        found = [part.meta for segment in handle.segments for part in segment.states]
    else:
        columns = handle.extra.get("columns", [])
        found = [msgspec.convert(column["meta"], StateMeta) for column in columns]
    return found


def _in_form(batch: pa.RecordBatch, schema: pa.Schema | None) -> pa.RecordBatch:
    """Rows of a subtask that has stored the state in an older form, as those of the others."""
    if schema is None or batch.schema == schema:
        return batch
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _parquet_rows(data: bytes, stored: list[int], wanted: KeyGroupRange) -> Iterator[tuple[int, pa.RecordBatch]]:
    parquet = pq.ParquetFile(pa.BufferReader(data))
    for index, group in enumerate(stored):
        if group in wanted:
            for batch in parquet.read_row_group(index).to_batches():
                yield group, batch
