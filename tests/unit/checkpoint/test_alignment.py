"""Aligned checkpoints, and the rig that all tests of barriers share.

Inputs are written as words, so that Flink's sequences stay readable: `d0` a batch on channel 0, `b1@0` a barrier of
checkpoint 1 on channel 0 (`b1u@0` an unaligned one), `c1@0` a cancel marker, `e0` an end; `r` in front (`rb1@0`): it is
read, not reached. `+10` lets 10 ms pass, `!` lets the timer fire.
"""

import re

import pytest

from headrace.checkpoint.barriers.alignment import BarrierHandler
from headrace.checkpoint.barriers.instructions import (
    Block,
    CaptureComplete,
    Decline,
    SendCancelMarker,
    StartCapture,
    StopCapture,
    TakeSnapshot,
    Unblock,
)
from headrace.checkpoint.barriers.tracker import BarrierTracker
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.types import AlignmentKind, Barrier, CheckpointOptions
from headrace.errors import IllegalState, InvalidArgument

SUBSUMED = FailureReason.CHECKPOINT_DECLINED_SUBSUMED
CANCELLED = FailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
ENDED = FailureReason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM
LIMIT = FailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT
NOT_READY = FailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY

WORD = re.compile(r"(?:(r?)b(\d+)(u?)@(\d+)|(r?)c(\d+)@(\d+)|(r?)e(\d+)|d(\d+)|\+(\d+)|(!))")


class Rig:
    """A caller that obeys: it carries out instructions, and checks that each makes sense when it comes."""

    def __init__(self, gate, options=None, size=1):
        self.gate, self.options, self.size = gate, options or CheckpointOptions(), size
        self.now, self.index = 1000, 0
        self.timestamps = {}
        self.blocked, self.capturing = set(), set()
        self.taken = []  # barriers of snapshots taken
        self.acked = []  # checkpoints that this subtask acknowledges
        self.declined, self.markers = [], []
        self.captured = {}  # checkpoint -> positions of the data captured
        self.metrics = None

    def barrier(self, checkpoint, unaligned=False):
        timestamp = self.timestamps.setdefault(checkpoint, self.now)
        barrier = Barrier(checkpoint, timestamp, self.options)
        return barrier.as_unaligned() if unaligned else barrier

    def run(self, words):
        """Feed the words; positions of data count from 0 in each run."""
        self.index = 0
        for word in words.split():
            self._word(word)
            self.index += 1
        return self

    def _word(self, word):
        found = WORD.fullmatch(word)
        assert found, word
        read_b, bid, unaligned, bch, read_c, cid, cch, read_e, ech, data, plus, timer = found.groups()
        gate = self.gate
        if bid is not None:
            call = gate.on_barrier_read if read_b else gate.on_barrier
            self.apply(call(int(bch), self.barrier(int(bid), bool(unaligned)), self.now))
        elif cid is not None:
            call = gate.on_cancel_marker_read if read_c else gate.on_cancel_marker
            self.apply(call(int(cch), int(cid), self.now))
        elif ech is not None:
            call = gate.on_end_of_partition_read if read_e else gate.on_end_of_partition
            self.apply(call(int(ech), self.now))
        elif data is not None:
            if int(data) in self.capturing:
                self.captured[gate.pending[0]].append(self.index)
            gate.on_data(int(data), self.size)
        elif plus is not None:
            self.now += int(plus)
        else:
            assert timer
            self.apply(gate.on_time(self.now))

    def apply(self, instructions):
        for instruction in instructions:
            self._apply(instruction)

    def _apply(self, instruction):
        match instruction:
            case Block(channel):
                assert channel not in self.blocked
                self.blocked.add(channel)
            case Unblock(channels):
                assert channels
                assert set(channels) <= self.blocked
                self.blocked -= set(channels)
            case StartCapture(checkpoint, channels):
                assert channels
                self.captured[checkpoint] = []
                self.capturing = set(channels)
            case StopCapture(_, channels):
                assert set(channels) <= self.capturing
                self.capturing -= set(channels)
            case TakeSnapshot(barrier, unaligned, metrics):
                assert unaligned == barrier.options.unaligned
                self.taken.append(barrier)
                self.metrics = metrics
                if not unaligned:
                    self.acked.append(barrier.id)
            case CaptureComplete(checkpoint, metrics):
                assert not self.capturing
                self.captured.setdefault(checkpoint, [])
                self.metrics = metrics
                self.acked.append(checkpoint)
            case Decline(checkpoint, reason):
                self.declined.append((checkpoint, reason))
            case SendCancelMarker(checkpoint):
                self.markers.append(checkpoint)

    @property
    def triggered(self):
        return [barrier.id for barrier in self.taken]


def aligned(channels, **options):
    return Rig(BarrierHandler(range(channels), **options))


# --- Flink's AlignedCheckpointsTest -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "words"), [(1, "d0 d0 d0 e0"), (4, "d2 d2 d0 d1 d0 e0 d3 d1 e3 d1 e1 d2 e2")])
def test_no_barriers(channels, words):  # SPEC R6.2 testSingleChannelNoBarriers, testMultiChannelNoBarriers
    rig = aligned(channels).run(words)
    assert (rig.triggered, rig.declined, rig.blocked, list(rig.gate._open)) == ([], [], set(), [])


def test_single_channel_with_barriers():  # SPEC R6.2 testSingleChannelWithBarriers
    rig = aligned(1).run("d0 d0 d0 b1@0 d0 d0 d0 d0 b2@0 b3@0 d0 d0 b4@0 b5@0 b6@0 d0 e0")
    assert rig.acked == [1, 2, 3, 4, 5, 6]
    assert rig.metrics.alignment == 0


def test_multi_channel_with_barriers():  # SPEC R6.2 testMultiChannelWithBarriers
    rig = aligned(3).run("d0 d2 d0 b1@1 b1@2 d0")
    assert (rig.triggered, rig.blocked) == ([], {1, 2})
    rig.run("b1@0")
    assert (rig.triggered, rig.blocked) == ([1], set())
    rig.run("d0 d0 d1 d1 d2 b2@0 b2@1 b2@2 d2 d2 b3@2 d0 d0 b3@0 b3@1 b4@1 b4@2 b4@0 d0 e0 e1 e2")
    assert (rig.acked, rig.declined, rig.blocked) == ([1, 2, 3, 4], [], set())


def test_jumping_over_checkpoints():  # SPEC R6.2 testMultiChannelJumpingOverCheckpoint
    rig = aligned(3, after_finish=False).run("d0 d2 d0 b1@1 b1@2 d0 b1@0 d1 d0 b2@1 d2 b2@0 d2")
    assert rig.blocked == {0, 1}
    rig.run("b3@2")
    assert (rig.gate.latest, rig.blocked, rig.declined) == (3, {2}, [(2, SUBSUMED)])
    rig.run("d1 d0 b3@0")
    assert rig.blocked == {0, 2}
    rig.run("b4@1")
    assert (rig.gate.latest, rig.blocked) == (4, {1})
    rig.run("d2 d0 e0")
    assert rig.blocked == set()
    rig.run("d2 e2 d1 e1")
    assert rig.declined == [(2, SUBSUMED), (3, SUBSUMED), (4, ENDED)]
    assert rig.markers == [2, 3, 4]
    assert rig.acked == [1]


def test_metrics():  # SPEC R6.5, R10.2 AlignedCheckpointsTest#testMetrics
    rig = Rig(BarrierHandler(range(3)), size=100)
    rig.timestamps[1] = rig.now
    rig.run("+10 d0 d1 d2 b1@1 d0 d2 b1@0 d2 +10 b1@2 d0 d1 d2 e0 e1 e2")
    assert rig.gate.latest == 1
    assert (rig.metrics.start_delay, rig.metrics.alignment, rig.metrics.processed_bytes) == (10, 10, 300)


def test_a_clock_behind_the_drivers_gives_no_negative_delay():
    rig = aligned(1)
    rig.timestamps[1] = rig.now + 5
    assert rig.run("b1@0").metrics.start_delay == 0


def test_missing_cancel_markers():  # SPEC R6.2 testMissingCancellationBarriers
    rig = aligned(2).run("b1@0 c3@1 c2@0 c3@0 d0")
    assert rig.blocked == set()
    assert rig.declined == [(1, SUBSUMED), (3, CANCELLED)]


def test_closed_channels_are_not_waited_for():  # SPEC R6.2 testStartAlignmentWithClosedChannels
    rig = aligned(4).run("e2 e1 d0 d0 d3 b2@3 b2@0")
    assert (rig.gate.latest, rig.blocked) == (2, set())
    rig.run("b3@0 b3@3 d0 d0 d3 e0 d3 b4@3 d3 e3")
    assert (rig.acked, rig.blocked) == ([2, 3, 4], set())


def test_end_of_stream_while_checkpoint():  # SPEC R6.2 testEndOfStreamWhileCheckpoint
    rig = aligned(3).run("b1@0 b1@1 b1@2 d0 d0 d2 b2@2 b2@0 d1")
    assert rig.gate.latest == 2
    rig.run("e1")
    assert (rig.blocked, rig.acked) == (set(), [1, 2])
    rig.run("e2 d0 e0")
    assert rig.declined == []


def test_single_channel_abort():  # SPEC R6.2 testSingleChannelAbortCheckpoint
    rig = aligned(1).run("d0 b1@0 d0 b2@0 d0 c4@0")
    assert (rig.gate.latest, rig.declined) == (4, [(4, CANCELLED)])
    rig.run("b5@0 d0 c6@0 d0")
    assert rig.acked == [1, 2, 5]
    assert rig.declined == [(4, CANCELLED), (6, CANCELLED)]
    assert (rig.gate.latest, rig.blocked) == (6, set())


def test_multi_channel_abort():  # SPEC R6.2 testMultiChannelAbortCheckpoint
    rig = aligned(3).run("d0 d2 d0 b1@1")
    assert rig.blocked == {1}
    rig.run("b1@2")
    assert rig.blocked == {1, 2}
    rig.run("d0 b1@0 d0 d2 b2@0 b2@2 d1")
    assert (rig.acked, rig.blocked) == ([1], {0, 2})
    rig.run("c2@1")
    assert (rig.blocked, rig.declined) == (set(), [(2, CANCELLED)])
    rig.run("d2 d1 b3@1 b3@2 b3@0 d0 d1 c4@1 b4@2")
    assert rig.blocked == set()
    rig.run("d2 b4@0 d0 d1 d2 b5@2 b5@1 b5@0 d0 d1 c6@1 c6@2 b6@0 d0")
    assert rig.acked == [1, 3, 5]
    assert rig.declined == [(2, CANCELLED), (4, CANCELLED), (6, CANCELLED)]
    assert rig.markers == [2, 4, 6]
    assert rig.blocked == set()


def test_abort_on_cancelled_barriers():  # SPEC R6.2 testAbortOnCanceledBarriers
    rig = aligned(3).run("d1 b1@1 d2 d0 c1@0 d1")
    assert (rig.declined, rig.blocked) == ([(1, CANCELLED)], set())
    rig.run("b2@1 d2 d0 b1@2")
    assert rig.blocked == {1}
    rig.run("d0 d2 b2@0 b2@2 d0 d1 d2")
    assert (rig.acked, rig.declined, rig.blocked) == ([2], [(1, CANCELLED)], set())


def test_cancel_marker_of_a_subsumed_checkpoint_is_ignored():  # SPEC R6.2 testIgnoreCancelBarrierIfCheckpointSubsumed
    rig = aligned(3).run("d2 b3@1 b3@0 d2")
    assert rig.blocked == {0, 1}
    rig.run("b5@2")
    assert (rig.declined, rig.blocked) == ([(3, SUBSUMED)], {2})
    rig.run("d1 d0 c3@0 d0 d1 b5@0 b5@1 d0 d1 d2")
    assert (rig.acked, rig.declined, rig.blocked) == ([5], [(3, SUBSUMED)], set())


def test_end_of_partition_triggers():  # SPEC R6.2 testTriggerCheckpointsWithEndOfPartition
    rig = aligned(3).run("b1@0 b1@1 e2")
    assert (rig.acked, rig.declined, rig.gate.pending) == ([1], [], ())


def test_a_channel_with_barrier_and_end_counts_once():  # SPEC R6.2 testDeduplicateChannelsWithBothBarrierAndEndOfPartition
    rig = aligned(3).run("b2@0 b2@1 e1")
    assert (rig.triggered, rig.declined) == ([], [])
    rig.run("b2@2")
    assert (rig.acked, rig.gate.pending) == ([2], ())


def test_trigger_after_end_of_partition():  # SPEC R6.2 testTriggerCheckpointsAfterReceivedEndOfPartition
    rig = aligned(3).run("e2 b6@0 b6@1 e1 b7@0")
    assert (rig.acked, rig.declined, rig.gate.pending) == ([6, 7], [], ())


# --- the step of a task (SPEC R6.1), aborted ids (SPEC R5.7), the alignment limit ----------------------------------------


def test_the_snapshot_comes_before_the_channels_are_unblocked():  # SPEC R6.2
    gate = BarrierHandler("ab")
    gate.on_barrier("a", Barrier(1, 0), 0)
    snapshot, unblock = gate.on_barrier("b", Barrier(1, 0), 0)
    assert isinstance(snapshot, TakeSnapshot)
    assert unblock == Unblock(("a",))


@pytest.mark.parametrize("gate", [BarrierHandler(()), BarrierTracker(())])
def test_a_source_is_triggered(gate):  # SPEC R6.1
    rig = Rig(gate)
    rig.apply(gate.trigger(Barrier(3, 990), rig.now))
    rig.apply(gate.trigger(Barrier(3, 990), rig.now))  # drop if id <= last
    rig.apply(gate.trigger(Barrier(2, 990), rig.now))
    assert rig.acked == [3]
    assert (rig.metrics.start_delay, rig.metrics.alignment) == (10, 0)


@pytest.mark.parametrize("gate", [BarrierHandler(()), BarrierTracker(())])
def test_an_aborted_checkpoint_is_not_triggered(gate):  # SPEC R6.1, R5.7
    rig = Rig(gate)
    rig.apply(gate.on_aborted(4))
    assert rig.markers == []
    rig.apply(gate.trigger(Barrier(4, 0), 0))
    assert (rig.triggered, rig.declined, rig.markers) == ([], [], [4])
    rig.apply(gate.trigger(Barrier(5, 0), 0))
    assert rig.acked == [5]


@pytest.mark.parametrize("kind", [BarrierHandler, BarrierTracker])
def test_a_task_with_open_channels_is_triggered_at_their_ends(kind):  # SPEC R4.5, R6.1
    rig = Rig(kind(range(2)))
    rig.apply(rig.gate.trigger(rig.barrier(1), rig.now))
    rig.run("d0 e0")
    assert rig.triggered == []
    rig.run("d1 e1")
    assert rig.acked == [1]


@pytest.mark.parametrize("kind", [BarrierHandler, BarrierTracker])
def test_a_task_that_does_not_run_declines(kind):  # SPEC R6.1
    rig = Rig(kind(range(2)))
    rig.apply(rig.gate.not_ready(2))
    rig.run("b2@0 b2@1 c2@1")
    rig.apply(rig.gate.not_ready(2))
    assert (rig.declined, rig.markers, rig.triggered, rig.blocked) == ([(2, NOT_READY)], [2], [], set())
    rig.run("b3@0 b3@1")
    assert rig.acked == [3]


def test_not_ready_ends_what_is_under_way():
    rig = aligned(2).run("b1@0")
    rig.apply(rig.gate.not_ready(2))
    assert (rig.declined, rig.blocked) == ([(1, SUBSUMED), (2, NOT_READY)], set())


def test_barriers_of_an_aborted_checkpoint_are_dropped():  # SPEC R5.7
    rig = aligned(3)
    rig.apply(rig.gate.on_aborted(2))
    rig.run("b1@0 b1@1 b1@2 b2@1 b2@0 c2@2")
    assert (rig.acked, rig.declined, rig.markers, rig.blocked) == ([1], [], [2], set())
    rig.run("b3@0 b3@1 b3@2")
    assert rig.acked == [1, 3]


def test_cancel_marker_of_an_aborted_checkpoint_is_passed_on_without_a_decline():  # SPEC R5.7
    rig = aligned(2)
    rig.apply(rig.gate.on_aborted(2))
    rig.run("c2@0 b2@1")
    assert (rig.declined, rig.markers, rig.blocked) == ([], [2], set())


def test_abort_during_alignment_unblocks():  # SPEC R5.7
    rig = aligned(3).run("b1@0 b1@1")
    rig.apply(rig.gate.on_aborted(1))
    assert (rig.blocked, rig.declined, rig.markers) == (set(), [], [1])
    rig.run("b1@2 d0 d1 d2 b2@0 b2@1 b2@2")
    assert rig.acked == [2]


def test_abort_of_a_finished_or_older_checkpoint_changes_nothing():
    rig = aligned(2).run("b5@0 b5@1 b6@0")
    for checkpoint in (5, 4):
        rig.apply(rig.gate.on_aborted(checkpoint))
    rig.run("b6@1")
    assert (rig.acked, rig.markers) == ([5, 6], [])


def test_only_so_many_aborted_checkpoints_are_remembered():
    rig = aligned(1)
    for checkpoint in range(1, 201):
        rig.apply(rig.gate.on_aborted(checkpoint))
    rig.run(" ".join(f"b{checkpoint}@0" for checkpoint in range(70, 202)))
    assert rig.acked == [70, 71, 72, 201]
    assert rig.gate._aborted == set()


def test_alignment_limit_declines_and_unblocks():  # SPEC R6.2
    rig = aligned(3).run("b1@0 b1@1")
    rig.apply(rig.gate.on_limit_exceeded())
    assert (rig.declined, rig.markers, rig.blocked) == ([(1, LIMIT)], [1], set())
    rig.apply(rig.gate.on_limit_exceeded())
    rig.run("b1@2 b2@0 b2@1 b2@2")
    assert (rig.acked, rig.declined) == ([2], [(1, LIMIT)])


# --- restored in-flight rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_finish", [True, False])
def test_a_restored_channel_counts_as_aligned_when_it_is_empty(after_finish):  # SPEC R6.7
    rig = aligned(3, restored=[2], after_finish=after_finish).run("b1@0 b1@1")
    assert rig.triggered == []
    rig.run("d2 e2")
    assert (rig.acked, rig.declined) == ([1], [])
    rig.run("b2@0 b2@1")
    assert rig.acked == [1, 2]


# --- what cannot be ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", ["e0 b1@0", "e0 rb1@0", "e0 c1@0", "e0 rc1@0", "e0 e0", "e0 re0", "b1@1", "e7", "b1@7"]
)
def test_events_of_channels_without_a_writer_are_refused(words):
    with pytest.raises(IllegalState):
        aligned(2, restored=[1]).run(words)


def test_at_least_once_barriers_are_refused_by_the_exactly_once_gate():
    options = CheckpointOptions(alignment=AlignmentKind.AT_LEAST_ONCE)
    with pytest.raises(IllegalState, match="at-least-once"):
        Rig(BarrierHandler(range(2)), options).run("b1@0")


def test_wrong_channels_are_refused():
    with pytest.raises(InvalidArgument, match="restored"):
        BarrierTracker([0], restored=[1])
    with pytest.raises(InvalidArgument, match="forced-aligned"):
        BarrierHandler([0, 1], restored=[1], forced_aligned=[1])
