"""Operators with broadcast state: one side changes it, the other reads it (SPEC R4.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.api.functions import NoState
from headgate.errors import InvalidArgument
from headgate.graph.job_graph import ChainedOperator
from headgate.records.batch import Batch
from headgate.state.addresses import VOID
from headgate.state.backend import KeyedStateBackend
from headgate.state.broadcast import BroadcastStates
from headgate.worker.failures import NO_KEY as UNKNOWN
from headgate.worker.operators.base import Operator, OperatorContext, Receiver, explain
from headgate.worker.operators.keyed import KeyedElementContext, KeyedProcessOperator
from headgate.worker.operators.stateless import ElementContext, Process


class BroadcastContext:
    """The context of the broadcast side: read-write broadcast state, no key, no timers."""

    states: BroadcastStates  # when the operator is open

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.backend: KeyedStateBackend | None = None  # of a keyed operator that is open
        self.stamp: int | None = None

    def get_broadcast_state(self, descriptor: Any) -> Any:
        """The state, to be changed."""
        return self.states.writable(_name(descriptor))

    def apply_to_keyed_state(self, descriptor: Any, function: Callable[[Any, Any], None]) -> None:
        """Call `function(key, state)` for every key of this subtask that has such state."""
        if self.backend is None:
            NoState(self._operator.operator.name).keyed(descriptor)
            return
        self.backend.apply_to_all_keys(descriptor, VOID, getattr(function, "process", function))

    def timestamp(self) -> int | None:
        """The record's event timestamp."""
        return self.stamp

    def current_processing_time(self) -> int:
        """Milliseconds since the epoch."""
        return self._operator.context.clock()

    def current_watermark(self) -> int:
        """The event-time clock of this operator."""
        return getattr(self._operator, "watermark", -(1 << 63))


class ReadOnlyContext(ElementContext):
    """The context of the other side of a stream without keys."""

    states: BroadcastStates

    def get_broadcast_state(self, descriptor: Any) -> Any:
        """The state, to be read."""
        return self.states.read_only(_name(descriptor))


class KeyedReadOnlyContext(KeyedElementContext):
    """The context of the keyed side."""

    states: BroadcastStates

    def get_broadcast_state(self, descriptor: Any) -> Any:
        """The state, to be read."""
        return self.states.read_only(_name(descriptor))


def _name(descriptor: Any) -> str:
    name = getattr(descriptor, "name", None)
    if not isinstance(name, str):
        raise InvalidArgument(
            f"get_broadcast_state() needs the descriptor that was given to broadcast(), got {descriptor!r}"
        )
    return name


def _open_states(operator: Operator) -> BroadcastStates:
    store = operator.context.operator_state
    return BroadcastStates([store.get_broadcast_state(d) for d in operator.operator.spec.options["broadcast"]])


def _broadcast_receiver(operator: Operator, context: BroadcastContext) -> Receiver:
    function = operator.function.process_broadcast_element

    def receive(batch: Batch) -> None:
        out: list[Any] = []
        row: Any = UNKNOWN
        stamps = [None] * len(batch) if batch.timestamps is None else batch.timestamps.tolist()
        try:
            for row, context.stamp in zip(batch.rows(), stamps, strict=True):
                result = function(row, context)
                if result is not None:
                    out.extend(result)
        except Exception as error:
            raise operator.failure(explain(error, "process_broadcast_element"), row) from error
        operator.emit_tagged(out)

    return receive


class BroadcastProcess(Process):
    """A stream without keys and a broadcast stream."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self.element: ReadOnlyContext = ReadOnlyContext(self)
        self._broadcast = BroadcastContext(self)

    def open(self) -> None:
        self.element.states = self._broadcast.states = _open_states(self)
        super().open()

    def receiver(self, input: int) -> Receiver:
        if input == 1:
            return _broadcast_receiver(self, self._broadcast)
        return self._process_with(self.function.process_element)


class KeyedBroadcastProcess(KeyedProcessOperator):
    """A keyed stream and a broadcast stream."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self.element: KeyedReadOnlyContext = KeyedReadOnlyContext(self)
        self._broadcast = BroadcastContext(self)

    def open(self) -> None:
        self.element.states = self._broadcast.states = _open_states(self)
        super().open()
        self._broadcast.backend = self.backend

    def receiver(self, input: int) -> Receiver:
        if input == 1:
            return _broadcast_receiver(self, self._broadcast)
        return super().receiver(input)
