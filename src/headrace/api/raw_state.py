"""Raw state: bytes that a function writes and reads itself, for each key group or for each stream (SPEC R1.11).

A function writes all of it again at each checkpoint, in `snapshot_state`, and reads it in `initialize_state`:

    def snapshot_state(self, context):
        output = context.get_raw_keyed_state_output()
        for group, counts in self.by_key_group(output.key_group_of).items():
            output.start_new_key_group(group)
            output.write(encode(counts))

    def initialize_state(self, context):
        for key_group, stream in context.get_raw_keyed_state_inputs():
            self.counts.update(decode(stream.read()))

At a restore each subtask gets the streams of its key groups, and raw operator streams are distributed evenly. The
functions run in the subtask's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import IllegalState, InvalidArgument
from headrace.records.key_groups import KeyGroupRange

__all__ = ["RawKeyedStateOutput", "RawOperatorStateOutput"]


class RawKeyedStateOutput:
    """Raw keyed state of one checkpoint: at most one stream for each key group of the subtask."""

    def __init__(self, key_groups: KeyGroupRange, key_group_of: Callable[[Any], int]) -> None:
        self.key_groups = key_groups
        self.key_group_of = key_group_of
        self.streams: dict[int, bytearray] = {}
        self._current: bytearray | None = None

    def start_new_key_group(self, key_group: int) -> None:
        """Later calls of `write` append to the stream of this key group."""
        if key_group not in self.key_groups:
            raise InvalidArgument(
                "HR-1306",
                f"key group {key_group} belongs to another subtask; this one has key groups {self.key_groups.start} to "
                f"{self.key_groups.end}: use key_group_of(key)",
            )
        if key_group in self.streams:
            raise IllegalState("HR-2012", f"key group {key_group} was started before: write its bytes together")
        self._current = self.streams[key_group] = bytearray()

    def write(self, data: bytes) -> None:
        if self._current is None:
            raise IllegalState("HR-2012", "call start_new_key_group() before write()")
        self._current += data


class RawOperatorStateOutput:
    """Raw operator state of one checkpoint: any number of streams, which are redistributed as wholes."""

    def __init__(self) -> None:
        self.streams: list[bytearray] = []

    def start_new_stream(self) -> None:
        """Later calls of `write` append to a new stream."""
        self.streams.append(bytearray())

    def write(self, data: bytes) -> None:
        if not self.streams:
            raise IllegalState("HR-2012", "call start_new_stream() before write()")
        self.streams[-1] += data
