"""The moments of a subtask in a checkpoint's timeline, by clocks that differ. SPEC R10.6"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.checkpoint.stats import SubtaskMetrics, SubtaskStats
from headrace.rest.checkpoint_documents import _moments

T = 1_000_000  # when the checkpoint was triggered, by the driver's clock
NAMES = ["first_barrier", "last_barrier", "sync_start", "sync_end", "async_end", "ack_timestamp"]
spans = st.sampled_from([0, 1, 5, 50, 500, 6000])


def moments(delay, alignment, gap, sync, writing, network, apart, unaligned=False, slow=0):
    """As shown, counted from the trigger; the worker's clock is `apart` ms ahead, `slow` ms did not count at the driver."""
    first = T + delay
    start = first + (0 if unaligned else alignment + gap)
    written = start + sync + writing + (alignment if unaligned else 0)
    metrics = SubtaskMetrics(
        start_delay_ms=max(0, delay + apart),
        alignment_ms=alignment,
        sync_ms=sync,
        sync_started=start + apart,
        written=written + apart,
        unaligned=unaligned,
    )
    shown = _moments(T, SubtaskStats(max(T, written + network - slow), metrics))
    return [shown[name] - T for name in NAMES]


@pytest.mark.parametrize(
    ("apart", "shown"),
    [
        (0, [5, 12, 13, 15, 45]),
        (65_000, [210, 217, 218, 220, 250]),  # the worker's clock is ahead: it cannot have ended after its ack
        (-65_000, [0, 7, 7, 9, 39]),  # behind: it cannot have begun before the trigger
    ],
)
def test_hosts_whose_clocks_differ(apart, shown):
    assert moments(5, 7, 1, 2, 30, 205, apart)[:-1] == shown


def test_an_unaligned_subtask_sees_the_last_barrier_after_its_snapshot():
    assert moments(5, 6000, 0, 2, 38, 5, apart=0, unaligned=True) == [5, 6005, 5, 7, 6045, 6050]
    assert moments(5, 6000, 0, 2, 38, 5, apart=-10, unaligned=True) == [0, 6000, 0, 2, 6040, 6050]


@given(
    delay=spans,
    alignment=spans,
    gap=spans,
    sync=spans,
    writing=spans,
    network=spans,
    apart=st.sampled_from([0, 1, -1, 7, -7, 100, -100, 5000, -5000, 65000, -65000]),
    unaligned=st.booleans(),
    slow=st.sampled_from([0, 0, 600, 6100]),
)
@example(delay=0, alignment=1000, gap=0, sync=0, writing=60_000, network=0, apart=-10_000, unaligned=False, slow=6100)
@example(delay=50, alignment=500, gap=0, sync=0, writing=0, network=0, apart=-100, unaligned=False, slow=0)
def test_all_is_between_the_trigger_and_the_acknowledgement(unaligned, **figures):
    first, last, *rest = moments(unaligned=unaligned, **figures)
    assert [0, first, *rest] == sorted([0, first, *rest])
    assert first <= last <= (rest[-1] if unaligned else rest[0])
    if not figures["apart"] and not figures["slow"]:
        assert last - first == figures["alignment"]
