"""Timers: kept, snapshotted and rescaled as keyed state."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidArgument
from headrace.records.key_groups import KeyGroupRange, key_group
from headrace.state.addresses import VOID, NoKeySet, address_of
from headrace.state.timers import TimeDomain
from namespaces import select_namespace

EVENT, PROCESSING = TimeDomain.EVENT, TimeDomain.PROCESSING


def register(lab, time, key, namespace=VOID, domain=EVENT):
    return lab.backend.timers.register(domain, time, address_of(key), key_group(key, 128), namespace)


def delete(lab, time, key, namespace=VOID, domain=EVENT):
    return lab.backend.timers.delete(domain, time, address_of(key), key_group(key, 128), namespace)


def fire(lab, until, domain=EVENT):
    found = []
    while (timer := lab.backend.timers.pop_due(domain, until)) is not None:
        assert timer.domain is domain
        assert timer.group == key_group(lab.backend.key_at(timer.address), 128)
        found.append((timer.timestamp, lab.backend.key_at(timer.address), timer.namespace))
    return found


def test_order_is_time_then_registration(lab):
    for time, key in ((30, "a"), (10, "c"), (10, "a"), (20, "b"), (10, "b")):
        assert register(lab, time, key)
    lab.pause()
    assert lab.backend.timers.next_deadline(EVENT) == 10
    assert lab.backend.timers.next_deadline(PROCESSING) is None
    assert fire(lab, 9) == []
    assert fire(lab, 20) == [(10, "c", VOID), (10, "a", VOID), (10, "b", VOID), (20, "b", VOID)]
    lab.pause()
    assert lab.backend.timers.count(EVENT) == 1
    assert fire(lab, 2**63 - 1) == [(30, "a", VOID)]
    assert lab.backend.timers.next_deadline(EVENT) is None


def test_a_timer_is_registered_once(lab):
    assert register(lab, 10, "a")
    lab.pause()
    assert not register(lab, 10, "a")
    assert register(lab, 10, "a", domain=PROCESSING)
    assert register(lab, 10, "a", (0, 5))
    assert register(lab, 10, 1)
    assert register(lab, 10, 1.0)
    assert register(lab, 10, True)
    lab.pause()
    assert not register(lab, 10, "a", (0, 5))
    assert fire(lab, 10) == [(10, "a", VOID), (10, "a", (0, 5)), (10, 1, VOID), (10, 1.0, VOID), (10, True, VOID)]
    assert fire(lab, 10, PROCESSING) == [(10, "a", VOID)]
    assert register(lab, 10, "a")  # fired, so it may come again


def test_deleted_timers_do_not_fire(lab):
    register(lab, 10, "a")
    register(lab, 20, "a")
    lab.pause()
    assert delete(lab, 10, "a")
    assert not delete(lab, 10, "a")
    assert not delete(lab, 10, "b")
    assert lab.backend.timers.next_deadline(EVENT) == 20
    assert register(lab, 20, "b")
    assert register(lab, 10, "a")
    assert delete(lab, 20, "a")
    assert register(lab, 20, "a")  # now after b
    lab.pause()
    assert fire(lab, 20) == [(10, "a", VOID), (20, "b", VOID), (20, "a", VOID)]


def test_timers_may_be_registered_and_deleted_while_firing(lab):
    for time in (10, 20, 30):
        register(lab, time, "a")
    fired = []
    while (timer := lab.backend.timers.pop_due(EVENT, 30)) is not None:
        fired.append(timer.timestamp)
        if timer.timestamp == 10:
            delete(lab, 20, "a")
            register(lab, 15, "b")
            register(lab, 40, "b")
    assert fired == [10, 15, 30]
    lab.pause()
    assert lab.backend.timers.next_deadline(EVENT) == 40


def test_many_deleted_timers_leave_no_trace(still_lab):
    for time in range(5000):
        register(still_lab, time, "a")
        delete(still_lab, time, "a")
    timers = still_lab.backend.timers
    assert timers.count(EVENT) == 0
    assert len(timers._heaps[EVENT]) < 2000
    assert still_lab.snapshot() == []


def test_the_current_address_can_be_used(still_lab):
    backend = still_lab.backend
    with pytest.raises(NoKeySet, match="No key set: a timer was used"):
        backend.timers.register(EVENT, 1, backend.context.address, 0)
    still_lab.key("a")
    select_namespace(backend, (3, 4))
    backend.timers.register(EVENT, 1, backend.context.address, backend.context.group)
    assert fire(still_lab, 1) == [(1, "a", (3, 4))]
    with pytest.raises(InvalidArgument, match=r"a timer's time is an int of 64 bits in milliseconds, got 1\.5"):
        register(still_lab, 1.5, "a")


def test_timers_are_rescaled_by_key_group(lab):
    keys = [f"key-{i}" for i in range(60)]
    lab.configure(key_groups=KeyGroupRange(0, 127))
    for i, key in enumerate(keys):
        register(lab, i % 7, key)
    lab.pause()
    handles = lab.snapshot()
    parts = [lab.open(handles, key_groups=KeyGroupRange(a, b)) for a, b in ((0, 40), (41, 80), (81, 127))]
    again = [handle for part in parts for handle in lab.snapshot(part)]
    fired = []
    for part in parts:
        lab.backend = part
        fired += fire(lab, 100)
    assert sorted((time, key) for time, key, _ in fired) == sorted((i % 7, key) for i, key in enumerate(keys))
    lab.backend = lab.open(again)
    whole = fire(lab, 100)
    assert len(whole) == 60
    assert [time for time, _, _ in whole] == sorted(time for time, _, _ in whole)
