"""The end of a subtask's input as a state machine: the last record, the final checkpoint, the stop with a savepoint.

Events go in, and the state says what the subtask may do (SPEC R4.5, R8.3). It sends nothing and calls no operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum

from headrace.checkpoint.types import Barrier
from headrace.errors import IllegalState

_STORY_LENGTH = 16


class InputState(Enum):
    """The position of a subtask between its first record and its end."""

    RUNNING = "running"
    """Records are processed."""
    FINISHING = "finishing"
    """The last record was processed; operators emit what they hold, one after the other."""
    STOPPING = "stopping"
    """The savepoint that the job stops with is taken, and has no last record: until it is complete, nothing is emitted."""
    DATA_FINISHED = "data finished"
    """The end of the data was sent, and no checkpoint has it yet."""
    AWAITING_COMMIT = "awaiting commit"
    """The final checkpoint was taken: it has the end of the data, and is not complete yet."""
    AWAITING_SAVEPOINT = "awaiting savepoint"
    """The end of the data was sent, and the savepoint that the job stops with has it or is about to."""
    COMMITTED = "committed"
    """No checkpoint is needed any more: the subtask ends with its channels, and when its sinks' output is committed."""
    FINISHED = "finished"
    """The subtask has ended its own channels."""


_S = InputState

MOVES: Mapping[InputState, frozenset[InputState]] = {
    _S.RUNNING: frozenset({_S.FINISHING, _S.STOPPING, _S.COMMITTED}),
    _S.FINISHING: frozenset({_S.STOPPING, _S.DATA_FINISHED, _S.AWAITING_SAVEPOINT, _S.COMMITTED}),
    _S.STOPPING: frozenset({_S.RUNNING, _S.FINISHING, _S.COMMITTED}),
    _S.DATA_FINISHED: frozenset({_S.AWAITING_COMMIT, _S.AWAITING_SAVEPOINT}),
    _S.AWAITING_COMMIT: frozenset({_S.AWAITING_SAVEPOINT, _S.COMMITTED}),
    _S.AWAITING_SAVEPOINT: frozenset({_S.DATA_FINISHED, _S.AWAITING_COMMIT, _S.COMMITTED}),
    _S.COMMITTED: frozenset({_S.AWAITING_SAVEPOINT, _S.FINISHED}),
    _S.FINISHED: frozenset(),
}
"""The legal moves. STOPPING and AWAITING_SAVEPOINT go back if the savepoint fails: then the job continues."""

_BEFORE_END_OF_DATA = frozenset({_S.RUNNING, _S.FINISHING, _S.STOPPING})
_EMITTING = frozenset({_S.RUNNING, _S.FINISHING})


class EndOfInput:
    """The state of one subtask's input."""

    __slots__ = (
        "_back",
        "_drain",
        "_final",
        "_open_channels",
        "_open_data",
        "_savepoint",
        "_story",
        "_waits_for_final",
        "data_finished",
        "emits",
        "finished_operators",
        "finishing",
        "reads",
        "restored_as_finished",
        "state",
    )

    def __init__(self, channels: int, waits_for_final_checkpoint: bool, restored_as_finished: bool = False) -> None:
        """`restored_as_finished`: the subtask had ended before the checkpoint that it is restored from."""
        self.restored_as_finished = restored_as_finished
        self.finished_operators = 0
        self._waits_for_final = waits_for_final_checkpoint
        self._open_channels = self._open_data = channels
        self._final: int | None = None  # the first checkpoint after the last record
        self._savepoint: int | None = None  # the one that the job stops with
        self._drain: Barrier | None = None  # its barrier, while it waits for operators to finish
        self._back = InputState.RUNNING  # the state that continues if that savepoint fails
        self._story: deque[str] = deque(maxlen=_STORY_LENGTH)
        self._set(InputState.RUNNING)

    def _set(self, state: InputState) -> None:
        self.state = state
        # These are read for every batch of records: attributes are faster than properties.
        self.reads = state is InputState.RUNNING  # records are read from the source
        self.finishing = state is InputState.FINISHING  # operators emit what they hold at their end
        self.emits = state in _EMITTING  # timers fire; in the other states, what they emit would be lost
        self.data_finished = state not in _BEFORE_END_OF_DATA

    def _move(self, state: InputState, event: str) -> None:
        step = f"{self.state.value} -> {state.value} ({event})"
        if state not in MOVES[self.state]:
            raise IllegalState(
                f"the end of a subtask's input cannot move {step}: this is an error in Headrace; before that: {self.story}"
            )
        self._story.append(step)
        self._set(state)

    @property
    def story(self) -> str:
        """The newest moves, oldest first."""
        return ", ".join(self._story) or "no move"

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def all_data_ended(self) -> bool:
        """True if every channel has sent the end of its data."""
        return self._open_data == 0

    @property
    def may_finish(self) -> bool:
        """True if the subtask may end its own channels, as far as its input and its checkpoints are concerned."""
        return self.state is InputState.COMMITTED and not self._open_channels

    # --- the input --------------------------------------------------------------------------------------------------

    def data_ended(self) -> None:
        """Note the end of data of one channel."""
        if not self._open_data:
            raise IllegalState("more channels have sent the end of their data than this subtask has")
        self._open_data -= 1

    def channel_ended(self) -> None:
        """Note the end of one channel."""
        if not self._open_channels:
            raise IllegalState("more channels have ended than this subtask has")
        self._open_channels -= 1

    def begin_finishing(self) -> None:
        """The last record was processed: the operators are finished one after the other from now on.

        While STOPPING this comes from a level that goes on reading, because the savepoint has failed there.
        """
        if self.state is InputState.STOPPING and self._drain is None:
            self._savepoint = None
        self._move(InputState.FINISHING, "the last record was processed")

    def operator_finished(self) -> None:
        """Note that one more operator, in the order of the chain, has emitted all that it held."""
        self.finished_operators += 1

    def finish_data(self) -> Barrier | None:
        """The end of the data is sent; return the barrier of a savepoint that has waited for it."""
        drain, self._drain = self._drain, None
        if drain is not None:
            self._back = self._unsaved
            self._move(InputState.AWAITING_SAVEPOINT, "all operators have finished")
        else:
            self._move(self._unsaved, "all operators have finished")
        return drain

    def skip_data(self) -> None:
        """The subtask is restored as finished: it sends its ends and needs no checkpoint."""
        self._move(InputState.COMMITTED, "restored as finished")

    def finish(self) -> None:
        """The subtask ends its own channels."""
        if not self.may_finish:
            raise IllegalState(f"a subtask ends too early: {self.story}, and {self._open_channels} channels are open")
        self._move(InputState.FINISHED, "all channels have ended")

    @property
    def _unsaved(self) -> InputState:
        """The state after the end of the data, as long as no checkpoint has it."""
        return InputState.DATA_FINISHED if self._waits_for_final else InputState.COMMITTED

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def drain(self, barrier: Barrier) -> None:
        """Let a savepoint wait until the operators have finished; `finish_data` returns its barrier."""
        self._savepoint, self._drain = barrier.id, barrier

    def snapshot_taken(self, barrier: Barrier, stops: bool) -> None:
        """Note that the state was frozen for a checkpoint or savepoint; the job `stops` with it if it becomes complete."""
        if stops:
            self._stop(barrier.id)
        elif barrier.options.type.is_savepoint:
            return
        elif self.state is InputState.DATA_FINISHED:
            self._final = barrier.id
            self._move(InputState.AWAITING_COMMIT, f"checkpoint {barrier.id} was taken")
        elif self.state is InputState.AWAITING_SAVEPOINT and self._back is InputState.DATA_FINISHED:
            self._final, self._back = barrier.id, InputState.AWAITING_COMMIT

    def _stop(self, savepoint: int) -> None:
        self._savepoint = savepoint
        if self.state in (InputState.STOPPING, InputState.AWAITING_SAVEPOINT):
            return
        self._back = self.state
        state = InputState.AWAITING_SAVEPOINT if self.data_finished else InputState.STOPPING
        self._move(state, f"savepoint {savepoint} was taken")

    def completed(self, checkpoint_id: int) -> bool:
        """Note a complete checkpoint; return True if the end of the data is to be sent, without finishing the operators.

        After a savepoint that has no last record, operators emit nothing at their end: the job will be resumed.
        """
        event = f"{checkpoint_id} is complete"
        final = self._final is not None and checkpoint_id >= self._final
        if self.state is InputState.STOPPING and checkpoint_id == self._savepoint:
            self._move(InputState.COMMITTED, event)
            return True
        if (self.state is InputState.AWAITING_SAVEPOINT and (checkpoint_id == self._savepoint or final)) or (
            self.state is InputState.AWAITING_COMMIT and final
        ):
            self._move(InputState.COMMITTED, event)
        return False

    def aborted(self, checkpoint_id: int) -> None:
        """Note an aborted checkpoint; if the job was to stop with it, the subtask continues."""
        if checkpoint_id != self._savepoint:
            return
        self._savepoint = self._drain = None
        if self.state in (InputState.STOPPING, InputState.AWAITING_SAVEPOINT):
            self._move(self._back, f"savepoint {checkpoint_id} was aborted")
