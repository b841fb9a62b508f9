"""The event that the coordinator handles, shared by its parts: pure, on the driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.checkpoint import events as ev


@dataclass(slots=True)
class Turn:
    """The time of the event, and what it has led to so far."""

    now: int = 0  # never goes back
    instructions: list[ev.Instruction] = field(default_factory=list)
    slot_freed: bool = False  # requests that wait may be accepted now

    def emit(self, *instructions: ev.Instruction) -> None:
        """Add instructions, in the order in which they are to be carried out."""
        self.instructions += instructions

    def take(self) -> list[ev.Instruction]:
        """The instructions of this event, at its end."""
        instructions, self.instructions = self.instructions, []
        return instructions
