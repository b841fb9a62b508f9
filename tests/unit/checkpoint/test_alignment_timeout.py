"""Aligned until a timeout (SPEC R6.6), and kinds that take turns: Flink's AlternatingCheckpointsTest.

Flink announces a barrier when it comes in and processes it later: here it is read, then reached.
"""

import pytest
from test_alignment import CANCELLED, SUBSUMED, Rig

from headrace.checkpoint.barriers.alignment import BarrierHandler
from headrace.checkpoint.types import AlignmentKind, CheckpointOptions, SavepointFormat, SnapshotType

NEVER = 2**31 - 1
SAVEPOINT = CheckpointOptions(SnapshotType.SAVEPOINT, format=SavepointFormat.CANONICAL)


def timeout(ms):
    return CheckpointOptions(alignment=AlignmentKind.ALIGNED_WITH_TIMEOUT, timeout_ms=ms)


def timed(channels, ms, **options):
    return Rig(BarrierHandler(range(channels), **options), timeout(ms))


def alignments(rig):
    return [barrier.options.alignment for barrier in rig.taken]


def test_channels_are_captured_after_a_subsumed_alignment():  # SPEC R6.6 testChannelResetOnNewBarrier
    rig = Rig(BarrierHandler(range(2)), SAVEPOINT).run("b0@0")
    rig.options = timeout(NEVER)
    rig.run("rb1u@1 d0")
    assert (rig.declined, rig.blocked, rig.captured[1]) == ([(0, SUBSUMED)], set(), [1])


def test_switch_by_upstream():  # SPEC R6.6 testSwitchToUnalignedByUpstream
    rig = timed(2, NEVER).run("rb1@0")
    assert rig.triggered == []
    rig.run("rb1u@1")
    assert alignments(rig) == [AlignmentKind.UNALIGNED]
    assert rig.acked == [1]  # both barriers are read: the queues hold all in-flight data


@pytest.mark.parametrize("options", [SAVEPOINT, CheckpointOptions(alignment=AlignmentKind.UNALIGNED)])
def test_barrier_handling(options):  # SPEC R6.6 testCheckpointHandling, testSavepointHandling
    rig = Rig(BarrierHandler(range(2)), options).run("b123@0")
    assert bool(rig.triggered) != options.type.is_savepoint
    rig.run("b123@1")
    assert (rig.triggered, rig.acked, rig.blocked) == ([123], [123], set())


def test_alternation():  # SPEC R6.6 testAlternation
    rig = Rig(BarrierHandler(range(123)))
    for checkpoint in range(123):
        rig.options = SAVEPOINT if checkpoint % 2 else CheckpointOptions()
        rig.run(" ".join(f"b{checkpoint}@{channel}" for channel in range(123)))
    assert rig.acked == list(range(123))


def test_aligned_after_timed_out():  # SPEC R6.6 testAlignedAfterTimedOut
    rig = timed(1, 100).run("rb1@0 +101 ! b1@0")
    rig.run("rb2@0 b2@0")
    assert rig.acked == [1, 2]
    assert alignments(rig) == [AlignmentKind.UNALIGNED, AlignmentKind.ALIGNED_WITH_TIMEOUT]


def test_never_times_out():  # SPEC R6.6 testAlignedNeverTimeoutableCheckpoint
    rig = timed(2, NEVER).run("b1@0 d1")
    assert rig.triggered == []
    assert rig.run("b1@1").acked == [1]


def test_timeout_alignment():  # SPEC R6.6 testTimeoutAlignment
    rig = timed(2, 10).run("d0 d0 rb1@0 +20 ! d1 rb1@1 b1@0 b1@1")
    assert (alignments(rig), rig.acked) == ([AlignmentKind.UNALIGNED], [1])


def test_timeout_after_a_barrier_was_reached():  # SPEC R6.6 testTimeoutAlignmentAfterProcessingBarrier
    rig = timed(3, NEVER).run("b1@2")
    assert rig.triggered == []
    rig.run(f"rb1@0 +{2 * NEVER} !")
    assert (alignments(rig), rig.blocked, rig.capturing) == ([AlignmentKind.UNALIGNED], set(), {1})
    assert rig.run("d1 rb1@1").captured[1] == [0]


def test_timeout_on_the_first_barrier():  # SPEC R6.6 testTimeoutAlignmentOnFirstBarrier
    rig = timed(2, 100).run("rb1@0 rb1@1")
    assert rig.triggered == []
    assert rig.run("+400 b1@0").triggered == [1]  # passive: no timer fired


def test_timeout_before_the_first_barrier():  # SPEC R6.6 testTimeoutAlignmentBeforeFirstBarrier
    rig = timed(2, 100)
    rig.timestamps[1] = rig.now
    rig.run("+101 b1@0")
    assert (rig.triggered, rig.blocked, rig.capturing) == ([1], set(), {1})


def test_timeout_when_a_barrier_was_not_announced():  # SPEC R6.6 testTimeoutAlignmentWhenLocalBarrierFirst
    rig = timed(3, 100).run("rb1@1 rb1@2 b1@0 b1@1 b1@2")
    assert alignments(rig) == [AlignmentKind.ALIGNED_WITH_TIMEOUT]
    rig.run("+101 b2@0")
    assert rig.triggered == [1]
    rig.run("+101 rb2@1")
    assert alignments(rig)[-1] is AlignmentKind.UNALIGNED


@pytest.mark.parametrize(
    "words",
    [
        "b1@0 d1 +11 rb1@1 !",  # SPEC R6.6 testActiveTimeoutAfterLocalBarrierPassiveTimeout
        "d0 d0 rb1@0 d1 +11 rb1@1 ! b1@0 b1@1",  # SPEC R6.6 testActiveTimeoutAfterAnnouncementPassiveTimeout
        "d0 d1 +0 rb1@0 +11 ! rb1@1 b1@0 b1@1",  # SPEC R6.6 testActiveTimeoutBeforeFirstAnnouncementPassiveTimeout
        "rb1@0 d0 d0 +11 b1@0 ! d1 rb1@1 b1@1",  # SPEC R6.6 testActiveTimeoutAfterBarrierPassiveTimeout
        "d0 d0 rb1@0 d1 rb1@1 +11 ! b1@0 b1@1",  # SPEC R6.6 testActiveTimeoutAlignmentOnAnnouncement
        "rb1@0 b1@0 +40 rb1@1 b1@1",  # SPEC R6.6 testPassiveTimeoutAlignmentOnAnnouncement
    ],
)
def test_active_and_passive_timeouts_switch_once(words):
    rig = timed(2, 10).run(words)
    assert (alignments(rig), rig.acked, rig.blocked) == ([AlignmentKind.UNALIGNED], [1], set())


def test_timeout_of_the_second_checkpoint():  # SPEC R6.6 testTimeoutAlignmentOnAnnouncementForSecondCheckpoint
    rig = timed(2, 100).run("rb1@0 rb1@1 b1@0 b1@1")
    assert rig.triggered == [1]
    rig.run("d0 d1 rb2@0 rb2@1")
    assert rig.triggered == [1]
    assert rig.run("+400 !").acked == [1, 2]


def test_active_timeout_on_the_first_barrier():  # SPEC R6.6 testActiveTimeoutAlignmentOnFirstBarrier
    rig = timed(2, 100).run("b1@0")
    assert rig.gate.next_deadline() == rig.now + 100
    rig.run("+100 !")
    assert alignments(rig) == [AlignmentKind.UNALIGNED]
    assert rig.gate.next_deadline() is None


def test_the_deadline_counts_from_the_trigger():  # SPEC R6.6
    rig = timed(2, 100)
    rig.timestamps[1] = rig.now - 60
    rig.run("b1@0")
    assert rig.gate.next_deadline() == rig.now + 40


def test_all_channels_unblocked_after_the_timeout():  # SPEC R6.6 testAllChannelsUnblockedAfteralignedCheckpointTimeout
    rig = timed(2, 100).run("rb1@0 b1@0")
    assert rig.blocked == {0}
    rig.run("+101 ! rb1@1 b1@1")  # the second is aligned still: its writer was quicker than its clock
    assert (alignments(rig), rig.acked, rig.blocked) == ([AlignmentKind.UNALIGNED], [1], set())


def test_no_timeout_after_the_last_barrier():  # SPEC R6.6 testNoActiveTimeoutAlignmentAfterLastBarrier
    rig = timed(2, 100).run("b1@0 b1@1 +101 !")
    assert alignments(rig) == [AlignmentKind.ALIGNED_WITH_TIMEOUT]
    assert rig.gate.next_deadline() is None


def test_the_last_barrier_is_aligned_even_if_it_is_late():  # SPEC R6.6
    rig = timed(2, 100).run("b1@0 +101 b1@1")
    assert alignments(rig) == [AlignmentKind.ALIGNED_WITH_TIMEOUT]


def test_no_timeout_after_abort():  # SPEC R6.6 testNoActiveTimeoutAlignmentAfterAbort
    rig = timed(2, 100).run("b1@0 c1@0 c1@1 +101 !")
    assert (rig.triggered, rig.declined, rig.gate.next_deadline()) == ([], [(1, CANCELLED)], None)


def test_no_timeout_after_close():  # SPEC R6.6 testNoActiveTimeoutAlignmentAfterClose
    rig = timed(2, 100).run("b1@0")
    rig.gate.close()
    rig.run("+101 !")
    assert (rig.triggered, rig.gate.next_deadline()) == ([], None)


def test_an_unaligned_barrier_after_an_aligned_one():  # SPEC R6.6 testTimeoutAlignmentOnUnalignedCheckpoint
    rig = timed(3, NEVER).run("rb1@0 b1@0 rb1u@1")
    assert (alignments(rig), rig.blocked, rig.capturing) == ([AlignmentKind.UNALIGNED], set(), {2})


def test_the_end_of_a_channel_checks_the_deadline():  # SPEC R6.6 testTimeoutAlignmentAfterReceivedEndOfPartition
    rig = timed(3, 100).run("rb1@0 b1@0 +101 d1 e1")
    assert alignments(rig) == [AlignmentKind.UNALIGNED]
    assert rig.run("d2 e2").acked == [1]
    assert rig.captured[1] == [0]


def test_start_with_a_barrier_that_is_read_before_an_end():  # SPEC R6.6 testStartNewCheckpointViaAnnouncement
    rig = timed(3, 10000).run("rb1@0 e1 b1@0 rb1@2 b1@2")
    assert rig.acked == [1]


def test_metrics_alternation():  # SPEC R6.6 testMetricsAlternation
    rig = Rig(BarrierHandler(range(2)), size=1000)
    rig.timestamps[1] = rig.now - 10
    rig.run("b1@0 d0 d1 +6 b1@1 d0")
    assert (rig.metrics.start_delay, rig.metrics.alignment, rig.metrics.processed_bytes) == (10, 6, 2000)
    rig.options = SAVEPOINT
    rig.timestamps[2] = rig.now - 5
    rig.run("b2@0 d1 +5 b2@1")
    assert (rig.metrics.start_delay, rig.metrics.alignment, rig.metrics.processed_bytes) == (5, 5, 1000)
    rig.options = timeout(NEVER)
    rig.timestamps[3] = rig.now - 7
    rig.run("rb3u@0 d0 d1 +8 rb3u@1")
    assert (rig.metrics.start_delay, rig.metrics.alignment, rig.metrics.processed_bytes) == (7, 8, 2000)


def test_each_newer_checkpoint_resets_the_one_before():  # SPEC R6.6 testPreviousHandlerReset
    rig = Rig(BarrierHandler(range(2)))
    for checkpoint in range(4):
        rig.options = CheckpointOptions() if checkpoint % 2 else SAVEPOINT
        rig.run(f"b{checkpoint}@{checkpoint % 2}")
        assert (rig.blocked, rig.gate.pending) == ({checkpoint % 2}, (checkpoint,))


def test_out_of_order_barrier():  # SPEC R6.6 testOutOfOrderBarrier
    rig = timed(2, NEVER).run("b10@0")
    rig.options = SAVEPOINT
    rig.run("b5@1")
    assert (rig.gate.latest, rig.blocked) == (10, {0})


def test_a_newer_barrier_overtakes_a_cancel_marker():  # SPEC R6.6 testNextFirstCheckpointBarrierOvertakesCancellationBarrier
    rig = timed(2, 10000).run("b1@0 +1000 ! b2@0 +1000 ! c1@1 +1000 ! b2@1")
    assert (rig.acked, rig.metrics.alignment) == ([2], 2000)


# --- ours: the coordinator announces the timeout ---------------------------------------------------------------------------


def test_the_announced_timeout_switches():  # SPEC R6.6
    rig = timed(3, 100, deadlines=False).run("b1@0 rb1@1")
    assert rig.gate.next_deadline() is None
    rig.run("+500 ! rb1@2")  # this host's clock does not count
    assert rig.triggered == []
    rig.apply(rig.gate.on_announced(rig.barrier(1, unaligned=True), rig.now))
    assert (alignments(rig), rig.acked, rig.blocked) == ([AlignmentKind.UNALIGNED], [1], set())


def test_the_announced_timeout_comes_after_the_snapshot():
    rig = timed(2, 100, deadlines=False).run("b1@0 b1@1")
    rig.apply(rig.gate.on_announced(rig.barrier(1, unaligned=True), rig.now))
    assert (rig.acked, rig.gate.pending) == ([1], ())


def test_a_deadline_of_an_older_checkpoint_is_forgotten():
    rig = timed(2, 100).run("rb1@0 +50 rb2@1")
    assert rig.gate.next_deadline() == 1100
    rig.run("c1@0 b2@1")
    assert rig.gate.next_deadline() == 1150
