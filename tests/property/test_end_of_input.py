"""The end of a subtask's input under arbitrary events: it ends once, never too early, and never waits without a reason.

SPEC R4.5, R8.3
"""

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from effort import examples
from headrace.checkpoint.types import AlignmentKind, Barrier, CheckpointOptions, SavepointFormat, SnapshotType
from headrace.errors import IllegalState
from headrace.worker.end_of_input import MOVES, EndOfInput, InputState

AFTER_THE_DATA = set(InputState) - {InputState.RUNNING, InputState.FINISHING, InputState.STOPPING}
TYPES = (SnapshotType.CHECKPOINT, SnapshotType.FULL_CHECKPOINT, SnapshotType.SAVEPOINT)


def barrier(number, type=SnapshotType.CHECKPOINT, drain=False):
    format = SavepointFormat.NATIVE if type.is_savepoint else None
    return Barrier(number, 0, CheckpointOptions(type, AlignmentKind.ALIGNED, format=format, drain=drain))


class EndMachine(RuleBasedStateMachine):
    """A subtask whose operators, channels and checkpoints are events; beside it, what it has been told."""

    @initialize(channels=st.integers(0, 3), operators=st.integers(1, 3), waits=st.booleans())
    def begin(self, channels, operators, waits):
        self.end = EndOfInput(channels, waits)
        self.waits_for_final = waits
        self.open_data = self.open_channels = channels
        self.source = channels == 0
        self.operators = operators
        self.number = 0
        self.pending = {}  # the checkpoints that were triggered: whether they were taken behind the last record
        self.saved = not waits  # a complete checkpoint has the last record
        self.stop = None  # the savepoint that the job stops with
        self.stopped = False  # it is complete
        self.ends_sent = self.snapshots_in_the_middle = 0

    def send_ends(self):
        self.ends_sent += 1

    def finish_operators(self, count):
        for _ in range(min(count, self.operators - self.end.finished_operators)):
            self.end.operator_finished()
        if self.end.finished_operators == self.operators:
            drain = self.end.finish_data()
            self.send_ends()
            if drain is not None:
                assert drain.id == self.stop
                self.take(drain, stops=True)

    def take(self, taken, stops=False):
        self.end.snapshot_taken(taken, stops)
        if taken.options.type is not SnapshotType.SAVEPOINT:  # tasks are not notified of those, whose job goes on
            self.pending[taken.id] = self.end.data_finished

    # --- the input --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.source and self.end.reads)
    @rule(finished=st.integers(0, 3))
    def the_source_ends(self, finished):
        self.end.begin_finishing()
        self.finish_operators(finished)

    @precondition(lambda self: self.open_data and self.end.state is not InputState.FINISHING)
    @rule(drain=st.booleans(), finished=st.integers(0, 3))
    def the_data_of_a_channel_ends(self, drain, finished):
        """Without `drain` the writer has stopped with a savepoint, which then this subtask hears of as well."""
        if not drain and (self.stop is None or self.end.state is InputState.RUNNING):
            return
        self.open_data -= 1
        self.end.data_ended()
        if drain and self.end.all_data_ended and not self.end.data_finished:
            if self.end.state is InputState.STOPPING:
                self.stop = None  # the writer goes on: the savepoint has failed
            self.end.begin_finishing()
            self.finish_operators(finished)

    @precondition(lambda self: self.open_channels > self.open_data)
    @rule()
    def a_channel_ends(self):
        self.open_channels -= 1
        self.end.channel_ended()

    @precondition(lambda self: self.end.finishing)
    @rule(count=st.integers(1, 3))
    def operators_finish(self, count):
        self.finish_operators(count)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.end.state is not InputState.FINISHED)
    @rule(type=st.sampled_from(TYPES))
    def a_checkpoint(self, type):
        self.number += 1
        self.take(barrier(self.number, type))

    @precondition(lambda self: self.end.state is not InputState.FINISHED and self.stop is None and not self.stopped)
    @rule(drain=st.booleans(), finished=st.integers(0, 3))
    def the_job_stops(self, drain, finished):
        self.number += 1
        self.stop = self.number
        stop = barrier(self.number, SnapshotType.SYNC_SAVEPOINT, drain)
        if drain and self.source and not self.end.data_finished:
            self.end.drain(stop)
            if not self.end.finishing:
                self.end.begin_finishing()
                self.finish_operators(finished)
        else:
            self.take(stop, stops=True)

    @precondition(lambda self: self.pending)
    @rule(pick=st.integers(0, 99))
    def a_checkpoint_is_complete(self, pick):
        number = sorted(self.pending)[pick % len(self.pending)]
        stopping = self.end.state is InputState.STOPPING
        self.saved = self.saved or (self.pending.pop(number) and self.end.data_finished)
        sends = self.end.completed(number)
        assert sends == (stopping and number == self.stop)  # the operators are not finished: the job will be resumed
        if sends:
            self.send_ends()
        if number == self.stop:
            self.stop, self.stopped = None, True
        self.pending = {n: after for n, after in self.pending.items() if n > number}

    @precondition(lambda self: self.pending or self.stop is not None)
    @rule(pick=st.integers(0, 99))
    def a_checkpoint_is_aborted(self, pick):
        numbers = sorted({*self.pending, *([] if self.stop is None else [self.stop])})
        number = numbers[pick % len(numbers)]
        self.end.aborted(number)
        self.pending.pop(number, None)
        if number == self.stop:
            self.stop = None
            assert self.end.state not in (InputState.STOPPING, InputState.AWAITING_SAVEPOINT)  # the job continues

    # --- its end ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.end.may_finish)
    @rule()
    def finish(self):
        assert self.open_channels == 0
        assert self.end.data_finished
        assert self.saved or self.stopped  # a complete checkpoint has its last record, or the job has stopped
        self.end.finish()
        assert self.end.state is InputState.FINISHED

    @precondition(lambda self: not self.end.may_finish)
    @rule()
    def end_too_early(self):
        before = self.end.state
        with pytest.raises(IllegalState, match="a subtask ends too early"):
            self.end.finish()
        assert self.end.state is before

    @invariant()
    def the_end_of_the_data_is_sent_once(self):
        assert self.ends_sent == self.end.data_finished == (self.end.state in AFTER_THE_DATA)

    @invariant()
    def nothing_is_read_or_emitted_behind_the_last_record(self):
        assert self.end.reads == (self.end.state is InputState.RUNNING)
        assert self.end.emits == (self.end.reads or self.end.finishing)

    @invariant()
    def it_waits_for_a_savepoint_only_while_there_is_one(self):
        if self.end.state in (InputState.STOPPING, InputState.AWAITING_SAVEPOINT):
            assert self.stop is not None

    def teardown(self):
        """Whatever has happened, the next complete checkpoint after the end of the input ends the subtask."""
        if not hasattr(self, "end") or self.end.state is InputState.FINISHED:
            return
        if self.stop is not None:
            self.end.aborted(self.stop)
        if self.end.reads:
            self.end.begin_finishing()
        if self.end.finishing:
            self.stop = None
            self.finish_operators(self.operators)
        for _ in range(self.open_data):
            self.end.data_ended()
        for _ in range(self.open_channels):
            self.end.channel_ended()
        self.end.snapshot_taken(barrier(self.number + 1), stops=False)
        assert not self.end.completed(self.number + 1)
        self.end.finish()


EndMachine.TestCase.settings = hypothesis_settings(
    max_examples=examples(100), stateful_step_count=30, deadline=None, derandomize=True
)
TestEndOfInput = EndMachine.TestCase


# --- the table --------------------------------------------------------------------------------------------------------


def test_every_state_has_its_moves_and_the_end_has_none():
    assert set(MOVES) == set(InputState)
    assert [state for state, moves in MOVES.items() if not moves] == [InputState.FINISHED]
    reached, found = set(), {InputState.RUNNING}
    while found:
        reached |= found
        found = {target for state in found for target in MOVES[state]} - reached
    assert reached == set(InputState)


def test_the_data_never_goes_on_behind_its_end():
    assert [(a, b) for a in AFTER_THE_DATA for b in MOVES[a] if b not in AFTER_THE_DATA] == []


def test_an_illegal_move_raises_with_the_moves_before_it():
    end = EndOfInput(1, waits_for_final_checkpoint=True)
    end.snapshot_taken(barrier(7, SnapshotType.SYNC_SAVEPOINT), stops=True)
    end.aborted(7)
    end.begin_finishing()
    end.skip_data()
    with pytest.raises(IllegalState) as raised:
        end.skip_data()
    assert str(raised.value) == (
        "[HR-9001] the end of a subtask's input cannot move committed -> committed (restored as finished): this is an error in Headrace; "
        "before that: running -> stopping (savepoint 7 was taken), stopping -> running (savepoint 7 was aborted), "
        "running -> finishing (the last record was processed), finishing -> committed (restored as finished)"
    )


def test_more_ends_than_channels():
    end = EndOfInput(1, waits_for_final_checkpoint=False)
    end.data_ended()
    end.channel_ended()
    with pytest.raises(IllegalState, match="more channels have sent the end of their data than this subtask has"):
        end.data_ended()
    with pytest.raises(IllegalState, match="more channels have ended than this subtask has"):
        end.channel_ended()
