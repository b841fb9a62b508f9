"""From snapshots to tables: restored state stays bytes until a state of its name is opened (SPEC R1.10, R7.3).

It runs in the subtask's thread, before the first record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from headrace.checkpoint.handles import KeyedStateHandle, ReadPayload, StateMeta, checked_read
from headrace.records.key_groups import KeyGroupRange
from headrace.state.backend import NumberGroup
from headrace.state.hashmap.codec import SectionReader
from headrace.state.hashmap.columns import HashMapColumns, HashMapTable


@dataclass(frozen=True, slots=True)
class RestoredSlice:
    """The share of one state in one old segment; a section is a key group, its bytes and their checksum."""

    meta: StateMeta
    sections: list[tuple[int, bytes, int]] = field(default_factory=list)


def read_slices(handle: KeyedStateHandle, groups: KeyGroupRange, read: ReadPayload) -> Iterator[RestoredSlice]:
    """Yield the states of a snapshot in these key groups, older segments first."""
    wanted = KeyGroupRange(handle.first_group, handle.last_group).intersect(groups)
    for segment in handle.segments:
        common = KeyGroupRange(segment.first_group, segment.last_group).intersect(wanted)
        for part in segment.states:
            restored = RestoredSlice(part.meta)
            for group, offset, length, crc32 in part.table:
                if group in common:
                    what = f"state '{part.meta.name}', key group {group} of checkpoint {segment.checkpoint_id}"
                    data = checked_read(read, segment.payload, offset, length, crc32, what)
                    restored.sections.append((group, data, crc32))
            yield restored


def load_slice(table: HashMapTable, restored: RestoredSlice, reader: SectionReader) -> HashMapTable:
    """Add restored entries to a table; returns the table, or dicts in its place if columns cannot hold an entry."""
    for group, data, _ in restored.sections:
        if isinstance(table, HashMapColumns):
            columns = reader.columns(data)
            if columns is not None:
                for keys, values, removed in columns:
                    table.load_columns(keys, values, removed, group)
                continue
            if not all(type(address) is int for address, _ in reader.read(data)):  # columns cannot hold namespaces
                table = table.as_dicts()
        table.load(reader.read(data), group)
    return table


def number_sections(restored: RestoredSlice, reader: SectionReader) -> Iterator[NumberGroup] | None:
    """The entries of each key group, sorted by key, without a table; None if some are no numbers or not all there is."""
    sections = sorted(restored.sections, key=itemgetter(0))
    found = [(group, reader.columns(data)) for group, data, _ in sections]
    if len({group for group, _ in found}) < len(found) or any(columns is None for _, columns in found):
        return None
    return _sorted_numbers(found)


def _sorted_numbers(found: list[tuple[int, Any]]) -> Iterator[NumberGroup]:
    for group, columns in found:
        parts = list(columns)
        keys, values = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
        if len(keys):
            order = np.argsort(keys)
            yield group, (keys[order], values[order])
