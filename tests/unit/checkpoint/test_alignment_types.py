"""Barriers, options and reasons as plain data (SPEC R5.5, R5.6, R6.1, R6.4)."""

import msgspec
import pytest

from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.settings import CheckpointProperties, CheckpointSettings
from headrace.checkpoint.types import (
    AlignmentKind,
    Barrier,
    CheckpointOptions,
    SavepointFormat,
    SnapshotType,
)
from headrace.errors import InvalidArgument

SAVEPOINTS = [SnapshotType.SAVEPOINT, SnapshotType.SYNC_SAVEPOINT]
CHECKPOINTS = [SnapshotType.CHECKPOINT, SnapshotType.FULL_CHECKPOINT]
LONG_MAX = 2**63 - 1


def options_for(type, *, location="", format=None, drain=False, **settings):
    format = format or (SavepointFormat.CANONICAL if type.is_savepoint else None)
    properties = CheckpointProperties(type, format=format, drain=drain)
    return CheckpointSettings(**settings).options_for(properties, location)


# --- kinds (SPEC R6.4) --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", [*CHECKPOINTS, *SAVEPOINTS])
@pytest.mark.parametrize("unaligned", [True, False])
def test_at_least_once_is_at_least_once_for_everything(type, unaligned):  # SPEC R6.4
    options = options_for(type, exactly_once=False, unaligned=unaligned, aligned_timeout_ms=50)
    assert (options.alignment, options.exactly_once) == (AlignmentKind.AT_LEAST_ONCE, False)


@pytest.mark.parametrize("type", SAVEPOINTS)
def test_savepoints_are_aligned(type):  # SPEC R6.4
    assert options_for(type, unaligned=True, aligned_timeout_ms=50).alignment is AlignmentKind.ALIGNED


@pytest.mark.parametrize("type", CHECKPOINTS)
@pytest.mark.parametrize(
    ("unaligned", "timeout", "kind"),
    [
        (False, 0, AlignmentKind.ALIGNED),
        (False, 50, AlignmentKind.ALIGNED),
        (True, 0, AlignmentKind.UNALIGNED),
        (True, LONG_MAX, AlignmentKind.UNALIGNED),
        (True, 50, AlignmentKind.ALIGNED_WITH_TIMEOUT),
    ],
)
def test_kinds_of_checkpoints(type, unaligned, timeout, kind):  # SPEC R6.4
    options = options_for(type, unaligned=unaligned, aligned_timeout_ms=timeout)
    assert options.alignment is kind
    assert options.timeout_ms == (50 if kind is AlignmentKind.ALIGNED_WITH_TIMEOUT else None)


@pytest.mark.parametrize("type", SAVEPOINTS)
@pytest.mark.parametrize(("kind", "ms"), [(AlignmentKind.UNALIGNED, None), (AlignmentKind.ALIGNED_WITH_TIMEOUT, 10)])
def test_an_unaligned_savepoint_is_refused(
    type, kind, ms
):  # SPEC R6.4 CheckpointOptionsTest#testSavepointNeedsAlignment
    with pytest.raises(InvalidArgument, match="a savepoint cannot be unaligned"):
        CheckpointOptions(type, kind, ms, format=SavepointFormat.CANONICAL)
    with pytest.raises(InvalidArgument, match="a savepoint cannot be unaligned"):
        Barrier(1, 0, options_for(type)).as_unaligned()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alignment": AlignmentKind.UNALIGNED, "timeout_ms": 10}, "no aligned timeout"),
        ({"timeout_ms": 10}, "no aligned timeout"),
        ({"alignment": AlignmentKind.ALIGNED_WITH_TIMEOUT}, "more than 0 ms"),
        ({"alignment": AlignmentKind.ALIGNED_WITH_TIMEOUT, "timeout_ms": 0}, "more than 0 ms"),
        ({"format": SavepointFormat.NATIVE}, "only a savepoint has one"),
        ({"type": SnapshotType.SAVEPOINT}, "needs a format"),
        ({"type": SnapshotType.SAVEPOINT, "format": SavepointFormat.NATIVE, "drain": True}, "can drain"),
    ],
)
def test_options_without_meaning_are_refused(options, text):
    with pytest.raises(InvalidArgument, match=text):
        CheckpointOptions(**options)


# --- on the wire (SPEC R6.1) --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        CheckpointOptions(),
        options_for(SnapshotType.FULL_CHECKPOINT, unaligned=True, location="s3://a/b"),
        options_for(SnapshotType.CHECKPOINT, unaligned=True, aligned_timeout_ms=30_000),
        options_for(SnapshotType.SYNC_SAVEPOINT, drain=True, format=SavepointFormat.NATIVE, location="/sp"),
        options_for(SnapshotType.SAVEPOINT, exactly_once=False),
    ],
)
def test_barriers_survive_the_wire(options):  # SPEC R6.1 CheckpointOptionsTest#testSavepoint
    barrier = Barrier(2**40, 1_700_000_000_000, options)
    assert Barrier.decode(memoryview(barrier.encode())) == barrier


@pytest.mark.parametrize(
    "data", [b"", b"\x93\x01\x02", b"\x93\x01\x02\x95\xa9SAVEPOINT\xa9UNALIGNED\xc0\xa0\xa6NATIVE"]
)
def test_bad_barriers_are_refused(data):
    with pytest.raises(msgspec.DecodeError):
        Barrier.decode(data)


def test_as_unaligned_drops_the_timeout():
    options = options_for(SnapshotType.FULL_CHECKPOINT, unaligned=True, aligned_timeout_ms=10, location="x")
    hurried = Barrier(1, 5, options).as_unaligned()
    assert (hurried.deadline, hurried.options.type, hurried.options.location) == (None, options.type, "x")
    assert hurried.as_unaligned() is hurried


# --- reasons (SPEC R5.5, R5.6) ------------------------------------------------------------------------------------------


def test_preflight_reasons():  # SPEC R5.5
    assert {reason.name for reason in FailureReason if reason.preflight} == {
        "TOO_MANY_CHECKPOINT_REQUESTS",
        "MINIMUM_TIME_BETWEEN_CHECKPOINTS",
        "NOT_ALL_REQUIRED_TASKS_RUNNING",
        "IO_EXCEPTION",
    }


def test_five_reasons_count():  # SPEC R5.6
    assert {reason.name for reason in FailureReason if reason.counted} == {
        "IO_EXCEPTION",
        "CHECKPOINT_ASYNC_EXCEPTION",
        "CHECKPOINT_DECLINED",
        "CHECKPOINT_EXPIRED",
        "FINALIZE_CHECKPOINT_FAILURE",
    }


def test_every_reason_has_a_text_of_its_own():
    assert len({reason.value for reason in FailureReason}) == len(FailureReason.__members__) == 4 + 14
    for reason in FailureReason:
        assert FailureReason[reason.name] is reason
        assert str(reason) == reason.value
        assert reason.value.endswith(".")
