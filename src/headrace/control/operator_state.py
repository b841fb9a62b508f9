"""Operator state in a snapshot, as workers restore it and as the driver reads it."""

from __future__ import annotations

import msgspec

from headrace.api.durable import unpack
from headrace.api.sink import Prepared
from headrace.state.api import ListStateDescriptor
from headrace.state.operator import OperatorStateBackend, OperatorStateSnapshot
from headrace.state.parquet.operator import StoredOperatorTables, read_operator_tables
from headrace.storage.manifest import PieceKind, StatePiece
from headrace.storage.reader import SnapshotReader

COMMITTABLES = ListStateDescriptor("committables")
"""The state of a sink that holds what it has prepared: one element for each subtask, in the order of checkpoints."""

# Made once: threads that use a type for the first time at once, without a decoder, crash the process.
_decode_tables = msgspec.msgpack.Decoder(StoredOperatorTables).decode
_decode_operator_state = msgspec.msgpack.Decoder(OperatorStateSnapshot).decode


def operator_state_of(reader: SnapshotReader, pieces: tuple[StatePiece, ...] | None) -> OperatorStateSnapshot | None:
    """Read the operator state that a subtask left, if any."""
    for piece in (one for one in pieces or () if one.kind is PieceKind.OPERATOR):
        if piece.description:
            tables = _decode_tables(piece.description)
            return read_operator_tables(tables, {part.id: reader.read(part.handle) for part in piece.parts})
        if piece.parts:
            return _decode_operator_state(reader.read(piece.parts[0].handle))
    return None


def prepared_in(state: OperatorStateBackend) -> list[Prepared]:
    """Return the committables in an operator state, the oldest checkpoint first."""
    prepared = [
        Prepared(checkpoint_id, tuple(map(unpack, committables)))
        for of_subtask in state.get_list_state(COMMITTABLES).get()
        for checkpoint_id, committables in of_subtask
    ]
    return sorted(prepared, key=lambda one: one.checkpoint_id)
