"""At-least-once: barriers are counted (SPEC R6.3). The sequences are those of Flink's CheckpointBarrierTrackerTest."""

import pytest
from test_alignment import CANCELLED, ENDED, Rig

from headrace.checkpoint.barriers.tracker import BarrierTracker
from headrace.checkpoint.types import Barrier


def tracker(channels, **options):
    return Rig(BarrierTracker(range(channels), **options))


@pytest.mark.parametrize(("channels", "words"), [(1, "d0 d0 d0"), (4, "d2 d2 d0 d1 d0 d3 d1 d1 d2")])
def test_no_barriers(channels, words):  # SPEC R6.3 testSingleChannelNoBarriers, testMultiChannelNoBarriers
    rig = tracker(channels).run(words)
    assert (rig.triggered, rig.declined) == ([], [])


def test_single_channel_with_barriers():  # SPEC R6.3 testSingleChannelWithBarriers
    rig = tracker(1).run("d0 d0 d0 b1@0 d0 d0 d0 d0 b2@0 b3@0 d0 d0 b4@0 b5@0 b6@0 d0")
    assert rig.acked == [1, 2, 3, 4, 5, 6]


def test_single_channel_with_skipped_barriers():  # SPEC R6.3 testSingleChannelWithSkippedBarriers
    rig = tracker(1).run("d0 b1@0 d0 d0 b3@0 d0 b4@0 b6@0 d0 b7@0 d0 b10@0 d0")
    assert rig.acked == [1, 3, 4, 6, 7, 10]


def test_multi_channel_with_barriers():  # SPEC R6.3 testMultiChannelWithBarriers
    rig = tracker(3).run(
        "d0 d2 d0 b1@1 b1@2 d2 d1 b1@0 d0 d0 d1 d1 d2 b2@0 b2@1 b2@2 d2 d2 b3@2 d2 d2 b3@0 b3@1 b4@1 b4@2 b4@0 d0"
    )
    assert (rig.acked, rig.blocked) == ([1, 2, 3, 4], set())


def test_skipping_checkpoints():  # SPEC R6.3 testMultiChannelSkippingCheckpoints
    rig = tracker(3).run(
        "d0 d2 d0 b1@1 b1@2 d2 d1 b1@0 d0 d0 d1 d1 d2 b2@0 b2@1 b2@2 d2 d2 b3@2 d2 d2 b4@0 d0 d1 d2 b4@1 d1 b4@2 d0"
    )
    assert (rig.acked, rig.declined, rig.gate.pending) == ([1, 2, 4], [], ())


def test_late_barriers_complete_checkpoints():  # SPEC R6.3 testCompleteCheckpointsOnLateBarriers
    rig = tracker(3).run(
        "d1 d1 d0 d2 b2@1 b2@0 b2@2 d1 d0 b3@1 b3@2 d1 d0 b4@2 b4@1 d1 d2 b3@0 d0 b4@0 "
        "d1 d2 b5@1 d0 b5@0 d1 b5@2 d1 b6@1 d0 b6@0 d1 b7@1 d0 b7@2 d2 b8@2 d0 b8@1 d1 b9@1 "
        "b7@0 d0 b9@2 d2 b10@2 b8@0 d1 d2 b9@0 d1 d0 d2 b10@0 b10@1"
    )
    assert rig.acked == [2, 3, 4, 5, 7, 8, 9, 10]


def test_a_newer_barrier_overtakes_a_cancel_marker():  # SPEC R6.3 testNextFirstCheckpointBarrierOvertakesCancellationBarrier
    rig = tracker(2).run("b1@1 +1000 b2@1 +1000 c1@0 +1000 b2@0")
    assert (rig.acked, rig.metrics.alignment) == ([2], 2000)


def test_two_last_barriers_one_by_one():  # SPEC R6.3 testTwoLastBarriersOneByOne
    rig = tracker(2).run("b1@1 +1000 b2@1 +1000 b1@0 +1000 b2@0")
    assert (rig.acked, rig.metrics.alignment) == ([1, 2], 2000)


def test_single_channel_abort():  # SPEC R6.3 testSingleChannelAbortCheckpoint
    rig = tracker(1).run("d0 b1@0 d0 b2@0 c4@0 b5@0 d0 c6@0 d0")
    assert rig.acked == [1, 2, 5]
    assert rig.declined == [(4, CANCELLED), (6, CANCELLED)]
    assert rig.gate.pending == ()


def test_multi_channel_abort():  # SPEC R6.3 testMultiChannelAbortCheckpoint
    rig = tracker(3).run(
        "d0 d2 d0 b1@1 b1@2 d2 d1 b1@0 d0 d2 b2@0 b2@2 d0 d2 c2@1 d2 d1 b3@1 b3@2 b3@0 d0 d1 c4@1 b4@2 d0 b4@0 "
        "d0 d1 d2 b5@2 b5@1 b5@0 d0 d1 c6@1 c6@2 b6@0 d0"
    )
    assert rig.acked == [1, 3, 5]
    assert rig.declined == [(2, CANCELLED), (4, CANCELLED), (6, CANCELLED)]
    assert rig.markers == [2, 4, 6]


def test_interleaved_cancel_markers():  # SPEC R6.3 testInterleavedCancellationBarriers
    rig = tracker(3).run("b1@0 c2@0 c1@1 c2@1 c1@2 c2@2 d0")
    assert (rig.acked, rig.declined) == ([], [(1, CANCELLED), (2, CANCELLED)])


def test_metrics():  # SPEC R6.3, R10.2 CheckpointBarrierTrackerTest#testMetrics
    rig = Rig(BarrierTracker(range(3)), size=100)
    rig.timestamps[1] = rig.now
    rig.run("+10 d0 d1 d2 b1@1 d0 d2 b1@0 d2 +10 b1@2 d0 d1 d2 e0 e1 e2")
    assert (rig.metrics.start_delay, rig.metrics.alignment, rig.metrics.processed_bytes) == (10, 10, 300)


def test_single_channel_metrics():  # SPEC R6.3 testSingleChannelMetrics
    rig = Rig(BarrierTracker(range(1)), size=100)
    rig.timestamps[1] = rig.now
    rig.run("+10 d0 b1@0 d0 e0")
    assert (rig.metrics.start_delay, rig.metrics.alignment, rig.metrics.processed_bytes) == (10, 0, 0)


def test_end_of_partition_triggers_the_newest():  # SPEC R6.3 testTriggerCheckpointsWithEndOfPartition
    rig = tracker(3).run("b1@0 b2@0 b2@1 b3@0 b4@0 b4@1 b5@1 e2")
    assert (rig.acked, rig.declined, rig.gate.pending) == ([4], [], (5,))
    assert len(rig.gate._open) == 2


def test_a_channel_with_barrier_and_end_counts_once():  # SPEC R6.3 testDeduplicateChannelsWithBothBarrierAndEndOfPartition
    rig = tracker(3).run("b2@0 b2@1 e1")
    assert (rig.triggered, rig.declined) == ([], [])
    assert rig.run("b2@2").acked == [2]


def test_trigger_after_end_of_partition():  # SPEC R6.3 testTriggerCheckpointsAfterReceivedEndOfPartition
    rig = tracker(3).run("e2 b5@0 b6@0 b6@1 e1 b7@0")
    assert (rig.acked, rig.declined) == ([6, 7], [])


def test_a_channel_that_finishes_during_a_checkpoint():  # SPEC R6.3 testNoFastPathWithChannelFinishedDuringCheckpoints
    rig = tracker(2).run("b1@0 e0 b1@1")
    assert (rig.acked, rig.gate.pending) == ([1], ())


def test_an_aborted_checkpoint_is_forgotten_at_the_end():  # SPEC R6.3 testCompleteAndRemoveAbortedCheckpointWithEndOfPartition
    rig = tracker(3).run("c4@0 b4@1 b5@1 e2")
    assert (rig.acked, rig.declined, rig.gate.pending) == ([], [(4, CANCELLED)], (5,))


def test_abort_after_end_of_partition():  # SPEC R6.3 testAbortCheckpointsAfterEndOfPartitionReceived
    rig = tracker(3).run("e2 b5@0 b6@0 c6@1 e1 c7@0")
    assert (rig.acked, [checkpoint for checkpoint, _ in rig.declined]) == ([], [5, 6, 7])


def test_cancel_of_a_channel_left_alone():  # SPEC R6.3 testNoFastPathWithChannelFinishedDuringCheckpointsCancel
    rig = tracker(2).run("b1@0 e0 c1@1")
    assert (rig.declined, rig.gate.pending) == ([(1, CANCELLED)], ())


def test_the_end_of_an_input_aborts_all_with_finished_tasks_off():  # SPEC R6.2, R6.3
    rig = tracker(3, after_finish=False).run("b1@0 b2@0 c3@0 b4@0 e1")
    assert rig.declined == [(1, CANCELLED), (2, CANCELLED), (3, CANCELLED), (4, ENDED)]
    assert rig.gate.pending == ()
    assert rig.run("b4@2 b5@0 b5@2").acked == [5]


def test_only_fifty_are_tracked():  # SPEC R6.3
    rig = tracker(2).run(" ".join(f"b{checkpoint}@0" for checkpoint in range(1, 61)))
    assert rig.gate.pending == tuple(range(11, 61))
    rig.run("b5@1 b10@1 b11@1")
    assert rig.acked == [11]


def test_barriers_of_an_aborted_checkpoint_are_dropped():  # SPEC R5.7
    rig = tracker(2)
    rig.apply(rig.gate.on_aborted(2))
    rig.run("b1@0 b2@0 b1@1 b2@1 b3@0 b3@1")
    assert (rig.acked, rig.declined, rig.markers) == ([1, 3], [], [2])


def test_abort_while_barriers_are_counted():  # SPEC R5.7
    rig = tracker(2).run("b1@0 b2@0")
    rig.apply(rig.gate.on_aborted(2))
    rig.apply(rig.gate.on_aborted(2))
    assert rig.run("b1@1 b2@1").acked == [1]
    assert (rig.declined, rig.markers) == ([], [2])


def test_nothing_is_unaligned_here():  # SPEC R6.4
    rig = tracker(2)
    rig.apply(rig.gate.on_announced(Barrier(1, 0).as_unaligned(), rig.now))
    rig.run("rb1@0 rc1@0 re0 !")
    rig.apply(rig.gate.on_limit_exceeded())
    assert (rig.gate.pending, rig.gate.next_deadline(), rig.gate.needs_reading) == ((), None, False)


def test_close_forgets():
    rig = tracker(2).run("b1@0")
    rig.gate.close()
    assert rig.gate.pending == ()
