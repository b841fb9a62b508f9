"""What a subtask needs of the world; each runtime has its own."""

from __future__ import annotations

from typing import Protocol

__all__ = ["SubtaskServices"]


class SubtaskServices(Protocol):
    """Clock, way to the driver, wake-up."""

    lockstep: bool
    """Whether sources with a thread of their own hand over record by record, so that a run can be repeated."""

    def now(self) -> int:
        """Milliseconds."""
        ...

    def to_driver(self, channel: str, payload: bytes, records: int) -> None:
        """Send printed lines or collected records."""
        ...

    def wake(self) -> None:
        """Called from another thread: there is something to do."""
        ...
