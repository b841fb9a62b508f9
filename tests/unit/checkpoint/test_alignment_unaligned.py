"""Unaligned checkpoints (SPEC R6.5): Flink's UnalignedCheckpointsTest, then what reading ahead and announcements add."""

import pytest
from test_alignment import CANCELLED, ENDED, LIMIT, SUBSUMED, Rig

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
from headrace.checkpoint.types import AlignmentKind, CheckpointOptions

UNALIGNED = CheckpointOptions(alignment=AlignmentKind.UNALIGNED)


def unaligned(channels, **options):
    return Rig(BarrierHandler(range(channels), **options), UNALIGNED)


def kinds(instructions):
    return [type(instruction) for instruction in instructions]


# --- Flink's UnalignedCheckpointsTest -----------------------------------------------------------------------------------


def test_single_channel_with_barriers():  # SPEC R6.5 testSingleChannelWithBarriers
    rig = unaligned(1).run("d0 d0 d0 b1@0 d0 d0 d0 d0 b2@0 b3@0 d0 d0 b4@0 b5@0 b6@0 d0 e0")
    assert rig.acked == [1, 2, 3, 4, 5, 6]
    assert not any(rig.captured.values())


def test_multi_channel_with_barriers():  # SPEC R6.5 testMultiChannelWithBarriers
    rig = unaligned(3)
    assert rig.run("d0 d2 d0 b1@1 b1@2 d2 d1 d0 b1@0").captured[1] == [7]
    assert rig.run("d0 d0 d1 d1 d2 b2@0 b2@1 b2@2").captured[2] == []
    assert rig.run("d2 d2 b3@2 d2 d2 b3@0 b3@1").captured[3] == []
    assert rig.run("b4@1 b4@2 b4@0").captured[4] == []
    assert rig.run("d0 d2 d0 b5@1 d2 d0 d2 d1 b5@2 d1 d0 d2 d1 b5@0").captured[5] == [4, 5, 6, 10]
    rig.run("d0 e0 e1 e2")
    assert (rig.acked, rig.declined, rig.blocked) == ([1, 2, 3, 4, 5], [], set())


def test_the_snapshot_is_taken_at_the_first_barrier():  # SPEC R6.5
    rig = unaligned(3).run("b1@1")
    assert (rig.triggered, rig.acked, rig.blocked, rig.capturing) == ([1], [], set(), {0, 2})


def test_metrics():  # SPEC R6.5 UnalignedCheckpointsTest#testMetrics
    rig = Rig(BarrierHandler(range(3)), UNALIGNED, size=100)
    rig.timestamps[1] = rig.now
    rig.run("+10 d0 d1 d2 b1@1 d0 d1 d2 b1@0 d0 d1 d2 +10 b1@2 d0 d1 d2 e0 e1 e2")
    assert (rig.metrics.start_delay, rig.metrics.alignment, rig.metrics.processed_bytes) == (10, 10, 600)


def test_trailing_data():  # SPEC R6.5 testMultiChannelTrailingInflightData, testEarlyCleanup
    rig = unaligned(3, after_finish=False).run("d0 d1 d2 b1@1 b1@2 b1@0")
    assert rig.captured[1] == []
    rig.run("d2 d1 d0 b2@1 d1 d1 e1 d0 d2 b2@2 d2 e2 d0 e0")
    assert (rig.triggered, rig.acked, rig.declined, rig.capturing) == ([1, 2], [1], [(2, ENDED)], set())


def test_missing_cancel_markers():  # SPEC R6.5 testMissingCancellationBarriers
    rig = unaligned(2).run("b1@0 c2@0 c3@0 c3@1 d0 e0 e1")
    assert (rig.triggered, rig.acked) == ([1], [])
    assert rig.declined == [(1, SUBSUMED), (2, CANCELLED), (3, CANCELLED)]


def test_closed_channels():  # SPEC R6.5 testStartAlignmentWithClosedChannels
    rig = unaligned(4)
    assert rig.run("e2 e1 d0 d0 d3 b2@3 b2@0").captured[2] == []
    assert rig.run("d3 d0 b3@3 d3 d0 b3@0").captured[3] == [4]
    assert rig.run("b4@0 b4@3").captured[4] == []
    rig.run("d0 d0 d3 e0")
    assert rig.run("d3 b5@3 d3 e3").captured[5] == []
    assert rig.acked == [2, 3, 4, 5]


def test_end_of_stream_while_checkpoint():  # SPEC R6.5 testEndOfStreamWhileCheckpoint
    rig = unaligned(3).run("b1@0 b1@1 b1@2")
    assert rig.run("d0 d0 d2 b2@2 b2@0 d0 d2 d1 e2 e1 d0 e0").captured[2] == [7]
    assert rig.acked == [1, 2]


def test_single_channel_abort():  # SPEC R6.5 testSingleChannelAbortCheckpoint
    rig = unaligned(1).run("d0 b1@0 d0 b2@0 c4@0")
    assert rig.declined == [(4, CANCELLED)]
    rig.run("b5@0 d0 c6@0 d0 e0")
    assert (rig.acked, rig.declined) == ([1, 2, 5], [(4, CANCELLED), (6, CANCELLED)])


def test_multi_channel_abort():  # SPEC R6.5 testMultiChannelAbortCheckpoint
    rig = unaligned(3).run("d0 d2 d0 b1@1 b1@2 d2 d1 b1@0 d0 d2")
    rig.run("b2@0 b2@2 d0 d2 c2@1")
    assert (rig.triggered, rig.declined, rig.capturing) == ([1, 2], [(2, CANCELLED)], set())
    rig.run("d2 d1 b3@1 b3@2 b3@0 d0 d1 c4@1 b4@2 d0 b4@0")
    assert rig.triggered == [1, 2, 3]  # the fourth is cancelled before it begins
    rig.run("d0 d1 d2 b5@2 b5@1 b5@0 d0 d1 c6@1 c6@2 b6@0 d0 e0 e1 e2")
    assert rig.acked == [1, 3, 5]
    assert rig.declined == [(2, CANCELLED), (4, CANCELLED), (6, CANCELLED)]
    assert not any(rig.captured.values())


@pytest.mark.parametrize("cancelled", [1, 2])
def test_cancel_after_barrier(cancelled):  # SPEC R6.5 testProcessCancellationBarrierAfterProcessBarrier
    rig = unaligned(2).run("b1@0")
    assert rig.gate.pending == (1,)
    rig.run(f"c{cancelled}@0")
    assert (rig.gate.pending, rig.gate.latest, rig.declined[-1]) == ((), cancelled, (cancelled, CANCELLED))
    rig.run(f"c{cancelled + 1}@0")
    assert (rig.gate.latest, rig.declined[-1]) == (cancelled + 1, (cancelled + 1, CANCELLED))


def test_cancel_before_barrier():  # SPEC R6.5 testProcessCancellationBarrierBeforeProcessAndReceiveBarrier
    rig = unaligned(1).run("c1@0 b1@0")
    assert (rig.triggered, rig.declined, rig.gate.latest) == ([], [(1, CANCELLED)], 1)


def test_end_of_stream_with_finished_tasks_off():  # SPEC R6.5 testEndOfStreamWithPendingCheckpoint
    rig = unaligned(2, after_finish=False).run("b1@0 e0")
    assert (rig.gate.pending, rig.gate.latest, rig.declined) == ((), 1, [(1, ENDED)])
    assert len(rig.gate._open) == 1


def test_end_of_partition_completes():  # SPEC R6.5 testTriggerCheckpointsWithEndOfPartition
    rig = unaligned(3).run("b1@1 d0 b1@0 d1 e2 e0 e1")
    assert (rig.acked, rig.declined, rig.captured[1]) == ([1], [], [1])


def test_trigger_after_end_of_partition():  # SPEC R6.5 testTriggerCheckpointsAfterReceivedEndOfPartition
    rig = unaligned(3)
    assert rig.run("e0 b3@1 d1 d2 e1 b3@2").captured[3] == [3]
    assert rig.run("d2 b4@2 e2").captured[4] == []
    assert rig.acked == [3, 4]


@pytest.mark.parametrize(
    ("words", "channels", "triggers", "aborts"),
    [
        ("c10@0 c20@0", 1, False, True),
        ("c20@0 c10@0", 1, False, True),
        ("c10@0 b10@0", 1, False, True),
        ("c10@0 b20@0", 1, True, True),
        ("c20@0 b10@0", 1, False, True),
        ("b10@0 b10@0", 1, True, False),
        ("b10@0 b20@0", 1, True, False),
        ("b10@0 b20@0", 2, True, True),
        ("b20@0 b10@0", 1, True, False),
        ("b10@0 c10@0", 1, True, False),
        ("b10@0 c10@0", 2, True, True),
        ("b10@0 c20@0", 1, True, True),
        ("b20@0 c10@0", 1, True, False),
    ],
)
def test_cancellation(words, channels, triggers, aborts):  # SPEC R6.5 UnalignedCheckpointsCancellationTest
    rig = unaligned(channels).run(words)
    assert (bool(rig.triggered), bool(rig.declined)) == (triggers, aborts)


# --- reading ahead: barriers overtake the queue --------------------------------------------------------------------------


def test_a_barrier_that_is_read_overtakes_the_queue():  # SPEC R6.5
    rig = unaligned(2)
    barrier = rig.barrier(1)
    assert rig.gate.on_barrier_read(0, barrier, rig.now) == [
        StartCapture(1, (0, 1)),
        TakeSnapshot(barrier, unaligned=True, metrics=rig.gate._at.metrics(rig.now, 0)),
        StopCapture(1, (0,)),  # what stands before it is in the queue
    ]
    assert rig.gate.needs_reading
    assert kinds(rig.gate.on_barrier_read(1, barrier, rig.now)) == [StopCapture, CaptureComplete]
    assert rig.gate.on_barrier(0, barrier, rig.now) == []  # reached at last: counted already
    assert rig.gate.on_barrier(1, barrier, rig.now) == []


def test_the_announcement_starts_the_checkpoint_without_any_barrier():  # SPEC R6.5
    rig = unaligned(2)
    rig.timestamps[1] = rig.now - 7
    rig.apply(rig.gate.on_announced(rig.barrier(1), rig.now))
    assert (rig.triggered, rig.capturing, rig.gate.needs_reading) == ([1], {0, 1}, True)
    rig.run("d0 d1 rb1@0 d0 d1 +20 rb1@1")
    assert (rig.acked, rig.captured[1], rig.gate.needs_reading) == ([1], [0, 1, 4], False)
    assert (rig.metrics.start_delay, rig.metrics.alignment) == (7, 20)
    rig.apply(rig.gate.on_announced(rig.barrier(1), rig.now))  # it may come twice
    assert rig.triggered == [1]


def test_an_announcement_subsumes_the_checkpoint_under_way():
    rig = Rig(BarrierHandler(range(2))).run("b1@0")
    rig.apply(rig.gate.on_announced(rig.barrier(2, unaligned=True), rig.now))
    assert (rig.declined, rig.triggered, rig.blocked, rig.capturing) == ([(1, SUBSUMED)], [2], set(), {0, 1})


def test_the_announcement_of_an_aligned_or_aborted_checkpoint():
    rig = Rig(BarrierHandler(range(2)))
    rig.apply(rig.gate.on_announced(rig.barrier(1), rig.now))
    assert rig.gate.pending == ()
    rig.apply(rig.gate.on_aborted(2))
    rig.apply(rig.gate.on_announced(rig.barrier(2, unaligned=True), rig.now))
    assert (rig.triggered, rig.markers) == ([], [2])


def test_a_source_takes_an_unaligned_checkpoint_whole():  # SPEC R6.1
    rig = unaligned(0)
    rig.apply(rig.gate.trigger(rig.barrier(1), rig.now))
    assert (rig.triggered, rig.acked) == ([1], [1])


def test_the_end_of_a_channel_ends_its_capture_when_it_is_read():
    rig = unaligned(2)
    rig.apply(rig.gate.on_announced(rig.barrier(1), rig.now))
    rig.run("d0 re0 rb1@1")
    assert (rig.acked, rig.captured[1]) == ([1], [0])
    assert list(rig.gate._open) == [0, 1]  # the rows before the end are still to be processed
    rig.apply(rig.gate.on_announced(rig.barrier(2), rig.now))
    assert rig.capturing == {1}  # captured once more, and whole at once
    rig.run("e0 rb2@1")
    assert (rig.acked, list(rig.gate._open)) == ([1, 2], [1])


def test_an_end_that_is_read_aborts_a_capture_with_finished_tasks_off():
    rig = unaligned(2, after_finish=False)
    rig.apply(rig.gate.on_announced(rig.barrier(1), rig.now))
    assert rig.run("re0").declined == [(1, ENDED)]
    rig.apply(rig.gate.on_announced(rig.barrier(2), rig.now))  # hopeless from the start: not even a snapshot
    assert (rig.triggered, rig.declined) == ([1], [(1, ENDED), (2, ENDED)])


def test_a_cancel_marker_that_is_read_ends_the_capture():
    rig = unaligned(2)
    rig.apply(rig.gate.on_announced(rig.barrier(1), rig.now))
    assert rig.gate.on_cancel_marker_read(0, 1, rig.now) == [
        StopCapture(1, (0, 1)),
        Decline(1, CANCELLED),
        SendCancelMarker(1),
    ]
    assert rig.gate.on_cancel_marker(0, 1, rig.now) == []


def test_a_cancel_marker_in_the_queue_stops_the_checkpoint_before_it_begins():
    rig = unaligned(2).run("rc1@0")
    rig.apply(rig.gate.on_announced(rig.barrier(1), rig.now))
    assert (rig.triggered, rig.declined, rig.markers) == ([], [(1, CANCELLED)], [1])


@pytest.mark.parametrize("newer", ["rb2@0", "rc2@0"])
def test_a_barrier_left_out_ends_the_capture(newer):
    rig = Rig(BarrierHandler(range(2)))
    rig.apply(rig.gate.on_announced(rig.barrier(1, unaligned=True), rig.now))
    rig.run(newer)
    assert (rig.declined, rig.capturing, rig.gate.pending) == ([(1, SUBSUMED)], set(), ())


def test_a_barrier_left_out_stops_the_checkpoint_before_it_begins():
    rig = Rig(BarrierHandler(range(2))).run("rb2@0")
    rig.apply(rig.gate.on_announced(rig.barrier(1, unaligned=True), rig.now))
    assert (rig.triggered, rig.declined) == ([], [(1, SUBSUMED)])
    assert rig.run("b2@0 b2@1").acked == [2]


def test_abort_during_capture():  # SPEC R5.7
    rig = unaligned(2).run("rb1@0")
    assert rig.gate.on_aborted(1) == [StopCapture(1, (1,)), SendCancelMarker(1)]
    assert rig.run("rb1@1 b1@0 b1@1 rb2@0 rb2@1").acked == [2]


def test_a_triggered_task_with_open_channels_captures_to_their_ends():  # SPEC R4.5
    rig = unaligned(2).run("re0")
    rig.apply(rig.gate.trigger(rig.barrier(1), rig.now))
    assert (rig.triggered, rig.capturing) == ([1], {1})
    assert rig.run("re1").acked == [1]


# --- forced-aligned inputs, restored rows --------------------------------------------------------------------------------


def test_forced_aligned_channels_are_aligned_first():  # SPEC R6.4
    rig = unaligned(4, forced_aligned=[0, 1])
    rig.apply(rig.gate.on_announced(rig.barrier(1), rig.now))
    rig.run("rb1@0 rb1@2 d2 b1@0 b1@2 d1")
    assert (rig.triggered, rig.blocked) == ([], {0, 2})  # 2 was reached before the cut: nothing behind it may count
    rig.run("b1@1")
    assert (rig.triggered, rig.blocked, rig.capturing) == ([1], set(), {3})
    assert rig.taken[0].options.alignment is AlignmentKind.UNALIGNED  # unaligned again behind it
    rig.run("d3 rb1@3")
    assert (rig.acked, rig.captured[1]) == ([1], [0])


def test_all_channels_forced_aligned():  # SPEC R6.4
    rig = unaligned(2, forced_aligned=[0, 1])
    rig.apply(rig.gate.on_announced(rig.barrier(1), rig.now))
    assert kinds(rig.gate.on_barrier(0, rig.barrier(1), rig.now)) == [Block]
    assert kinds(rig.gate.on_barrier(1, rig.barrier(1), rig.now)) == [TakeSnapshot, Unblock, CaptureComplete]


def test_a_forced_aligned_channel_that_ends_is_not_waited_for():
    rig = unaligned(2, forced_aligned=[0]).run("b1@1")
    assert (rig.triggered, rig.blocked) == ([], {1})
    assert rig.run("d0 e0").acked == [1]


def test_the_alignment_limit_holds_for_forced_alignment_too():
    rig = unaligned(3, forced_aligned=[0, 1]).run("b1@0")
    rig.apply(rig.gate.on_limit_exceeded())
    assert (rig.declined, rig.blocked) == ([(1, LIMIT)], set())


def test_the_alignment_limit_does_not_end_a_capture():
    rig = unaligned(2).run("b1@0")
    rig.apply(rig.gate.on_limit_exceeded())
    assert rig.run("b1@1").acked == [1]


def test_restored_rows_are_stored_again():  # SPEC R6.5
    rig = unaligned(3, restored=[2])
    instructions = rig.gate.on_announced(rig.barrier(1), rig.now)
    assert instructions[0] == StartCapture(1, (0, 1, 2))
    assert instructions[-1] == StopCapture(1, (2,))  # no barrier comes: what is there is all
    rig.apply(instructions)
    assert rig.run("rb1@0 rb1@1 e2").acked == [1]
