"""SPEC R5.3; the cases of Flink's CheckpointRequestDeciderTest."""

import pytest

from headrace.checkpoint.decider import Activity, Decision, RequestDecider, RequestOrigin, TriggerRequest
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.settings import CheckpointProperties, RetentionPolicy

NOW = 86_400_000
IDLE = Activity(last_completion=123)
TRIGGERING = Activity(triggering=True)
CHECKPOINT = CheckpointProperties.for_checkpoint(RetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)


def periodic_checkpoint():
    return TriggerRequest(CHECKPOINT, RequestOrigin.PERIODIC, NOW)


def manual_checkpoint():
    return TriggerRequest(CHECKPOINT, RequestOrigin.USER, NOW)


def savepoint(*, force=True, trigger=RequestOrigin.USER):
    return TriggerRequest(CheckpointProperties.for_savepoint(force), trigger, NOW)


def decider(max_concurrent=1, min_pause_ms=1, max_queued=10):
    return RequestDecider(max_concurrent, min_pause_ms, max_queued)


def test_a_forced_request_exceeds_the_limit():
    """R5.3, testForce."""
    request = savepoint(trigger=RequestOrigin.PERIODIC)
    busy = Activity(pending=1, last_completion=NOW)
    assert RequestDecider(1, 10**9, 1).submit(request, NOW, busy) == Decision(request)


@pytest.mark.parametrize("make", [periodic_checkpoint, lambda: savepoint(force=False)])
def test_others_wait_for_a_slot(make):
    """R5.3, testEnqueueOnTooManyPending and testNonForcedEnqueueOnTooManyPending."""
    queue, request = decider(), make()
    assert queue.submit(request, NOW, Activity(pending=1)) == Decision()
    assert queue.next(NOW, IDLE) == Decision(request)
    assert len(queue._queue) == 0


def test_all_wait_while_too_many_old_checkpoints_are_being_deleted():
    """R5.3, testEnqueueOnTooManyCleaning: the limit is that of concurrent checkpoints."""
    queue, request = decider(max_concurrent=10), periodic_checkpoint()
    assert queue.submit(request, NOW, Activity(cleaning=11)) == Decision()
    assert queue.next(NOW, Activity(cleaning=10)) == Decision(request)


def test_even_a_forced_request_waits_for_cleaning_triggering_and_holding():
    queue, request = decider(), savepoint()
    assert queue.submit(request, NOW, Activity(cleaning=2)) == Decision()
    assert queue.next(NOW, TRIGGERING) == Decision()
    assert queue.next(NOW, Activity(held=True)) == Decision()
    assert queue.next(NOW, IDLE) == Decision(request)
    assert queue.next(NOW, IDLE) == Decision()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(savepoint(), savepoint(trigger=RequestOrigin.PERIODIC), id="testUserSubmittedPrioritized"),
        pytest.param(savepoint(), periodic_checkpoint(), id="testSavepointPrioritized"),
        pytest.param(
            savepoint(force=False),
            savepoint(force=False, trigger=RequestOrigin.PERIODIC),
            id="testNonForcedUserSubmittedPrioritized",
        ),
        pytest.param(savepoint(force=False), periodic_checkpoint(), id="testNonForcedSavepointPrioritized"),
        pytest.param(manual_checkpoint(), periodic_checkpoint(), id="user before periodic"),
        pytest.param(savepoint(), savepoint(force=False), id="forced before not forced"),
    ],
)
def test_order(first, second):
    """R5.3: savepoint, forced, of a user, age."""
    queue = decider()
    for request in (second, first):
        assert queue.submit(request, NOW, TRIGGERING) == Decision()
    assert queue.next(NOW, IDLE).start is first
    assert queue.next(NOW, IDLE).start is second


def test_equal_requests_are_served_in_the_order_they_came():
    queue, requests = decider(), [manual_checkpoint() for _ in range(5)]
    for request in requests:
        queue.submit(request, NOW, TRIGGERING)
    assert [queue.next(NOW, IDLE).start for _ in requests] == requests
    older = TriggerRequest(CHECKPOINT, RequestOrigin.USER, NOW - 1)
    for request in (manual_checkpoint(), older):
        queue.submit(request, NOW, TRIGGERING)
    assert queue.next(NOW, IDLE).start is older


def test_queue_size_limit():
    """R5.3, testQueueSizeLimit: of periodic ones the newest is turned away."""
    queue, dropped = decider(max_queued=10), []
    for _ in range(11):
        dropped += queue.submit(periodic_checkpoint(), NOW, TRIGGERING).dropped
    assert [reason for _, reason in dropped] == [FailureReason.TOO_MANY_CHECKPOINT_REQUESTS]
    assert len(queue._queue) == 10


def test_queue_size_limit_priority():
    """R5.3, testQueueSizeLimitPriority: a savepoint takes the place of a periodic checkpoint."""
    queue, checkpoint = decider(max_queued=1), periodic_checkpoint()
    queue.submit(checkpoint, NOW, TRIGGERING)
    decision = queue.submit(savepoint(), NOW, TRIGGERING)
    assert decision.dropped == ((checkpoint, FailureReason.TOO_MANY_CHECKPOINT_REQUESTS),)
    assert len(queue._queue) == 1


def test_requests_of_users_keep_their_places():
    """R5.3: a full queue without periodic requests turns the new one away, whatever it is."""
    queue, waiting, new = decider(max_queued=1), manual_checkpoint(), savepoint()
    queue.submit(waiting, NOW, TRIGGERING)
    decision = queue.submit(new, NOW, IDLE)
    assert decision == Decision(dropped=((new, FailureReason.TOO_MANY_CHECKPOINT_REQUESTS),))
    assert queue.next(NOW, IDLE).start is waiting


@pytest.mark.parametrize(
    "request_", [savepoint(), savepoint(trigger=RequestOrigin.PERIODIC), savepoint(force=False), manual_checkpoint()]
)
def test_the_pause_does_not_concern_savepoints_and_users(request_):
    """R5.3, testSavepointTiming and the second half of testCheckpointTiming."""
    assert decider(min_pause_ms=10).submit(request_, NOW, Activity(last_completion=NOW)).start is request_


def test_a_periodic_checkpoint_within_the_pause_is_dropped_and_asked_for_again():
    """R5.3, testCheckpointTiming."""
    request, load = periodic_checkpoint(), Activity(last_completion=NOW - 4)
    decision = decider(min_pause_ms=10).submit(request, NOW, load)
    assert decision.start is None
    assert decision.dropped == ((request, FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS),)
    assert decision.reschedule_at == NOW + 6
    assert decider(min_pause_ms=10).submit(request, NOW + 6, load).start is request
    assert decider(min_pause_ms=10).submit(request, NOW, Activity()).start is request  # nothing completed yet


def test_clear_gives_back_what_waits():
    queue, checkpoint, user = decider(), periodic_checkpoint(), savepoint()
    for request in (checkpoint, user):
        queue.submit(request, NOW, TRIGGERING)
    assert queue.clear() == [user, checkpoint]
    assert len(queue._queue) == 0
