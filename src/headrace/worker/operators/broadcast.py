"""Operators with broadcast state: one side changes it, the other reads it (SPEC R4.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.api.functions import NoState
from headrace.api.specs import BroadcastProcessSpec
from headrace.errors import InvalidArgument
from headrace.graph.job_graph import ChainedOperator
from headrace.state.addresses import VOID
from headrace.state.broadcast import BroadcastStates
from headrace.worker.operators.base import ElementContext, Operator, OperatorContext, Receiver
from headrace.worker.operators.keyed import KeyedElementContext, KeyedOperator, KeyedProcessOperator
from headrace.worker.operators.stateless import Process


class BroadcastContext(ElementContext):
    """The context of the broadcast side: read-write broadcast state, no key, no timers."""

    states: BroadcastStates  # when the operator is open

    def get_broadcast_state(self, state_descriptor: Any) -> Any:
        """The state, to be changed."""
        return self.states.writable(_name(state_descriptor))

    def apply_to_keyed_state(self, descriptor: Any, function: Callable[[Any, Any], None]) -> None:
        """Call `function(key, state)` for every key of this subtask that has such state."""
        operator = self._operator
        if not isinstance(operator, KeyedOperator):
            NoState(operator.operator.name).state(descriptor)
        else:
            operator.backend.apply_to_all_keys(descriptor, VOID, getattr(function, "process", function))


class ReadOnlyContext(ElementContext):
    """The context of the other side of a stream without keys."""

    states: BroadcastStates

    def get_broadcast_state(self, state_descriptor: Any) -> Any:
        """The state, to be read."""
        return self.states.read_only(_name(state_descriptor))


class KeyedReadOnlyContext(KeyedElementContext, ReadOnlyContext):
    """The context of the keyed side."""


def _name(descriptor: Any) -> str:
    name = getattr(descriptor, "name", None)
    if not isinstance(name, str):
        raise InvalidArgument(
            "HR-2008", f"get_broadcast_state() needs the descriptor that was given to broadcast(), got {descriptor!r}"
        )
    return name


class _BroadcastSide(Operator):
    """Adds the broadcast side to an operator; its input is the second one."""

    element: ReadOnlyContext

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self._broadcast = BroadcastContext(self)

    def open(self) -> None:
        descriptors = BroadcastProcessSpec.of(self.operator).descriptors
        states = BroadcastStates([self.context.operator_state.get_broadcast_state(one) for one in descriptors])
        self.element.states = self._broadcast.states = states
        super().open()

    def receiver(self, input: int) -> Receiver:
        if input == 0:
            return super().receiver(input)
        method = "process_broadcast_element"
        return self.process_with(getattr(self.function, method), self._broadcast, method)


class BroadcastProcess(_BroadcastSide, Process):
    """A stream without keys and a broadcast stream."""

    element: ReadOnlyContext
    context_type = ReadOnlyContext


class KeyedBroadcastProcess(_BroadcastSide, KeyedProcessOperator):
    """A keyed stream and a broadcast stream."""

    element: KeyedReadOnlyContext
    context_type = KeyedReadOnlyContext
