"""Timers agree with a plain computation over the whole input, through snapshots and rescaling, on both backends."""

import heapq

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from headrace import MIN_WATERMARK, Configuration, KeyedProcessFunction, TimeDomain
from headrace.errors import HeadraceError
from headrace.records.key_groups import key_group, owner
from headrace.testing.harness import OneInputHarness

GROUPS = 16


class Commands(KeyedProcessFunction):
    """A record (key, command, domain, time) registers or deletes a timer; one at an even time registers another."""

    def process_element(self, value, ctx):
        _, command, domain, time = value
        getattr(ctx.timer_service(), f"{command}_{domain}_time_timer")(time)

    def on_timer(self, timestamp, ctx):
        domain = "event" if ctx.time_domain() is TimeDomain.EVENT else "processing"
        if timestamp % 2 == 0:
            getattr(ctx.timer_service(), f"register_{domain}_time_timer")(timestamp + 5)
        yield ctx.get_current_key(), domain, timestamp


class Tasks:
    """All subtasks; each key is given to the one it belongs to."""

    def __init__(self, parallelism, backend, restore=None, time=0):
        self.all = [
            OneInputHarness(
                Commands(),
                key=lambda row: row[0],
                restore=restore,
                subtask=i,
                parallelism=parallelism,
                max_parallelism=GROUPS,
                start_time=time,
                configuration=Configuration({"state.backend.type": backend}),
            ).open()
            for i in range(parallelism)
        ]

    def do(self, step):
        key, *rest = step
        if key == "watermark":
            for one in self.all:
                one.process_watermark(rest[0])
        elif key == "clock":
            for one in self.all:
                one.set_processing_time(rest[0])
        else:
            self.all[owner(key_group(key, GROUPS), GROUPS, len(self.all))].process_element(step)

    def take(self):
        return [row for one in self.all for row in one.take()]

    def stop(self):
        snapshots = [one.snapshot() for one in self.all]
        self.close()
        return snapshots

    def close(self):
        for one in self.all:
            one.close()


class Plain:
    """Timers said in the simplest way: a set, and whatever is due when time moves."""

    def __init__(self):
        self.timers, self.fired = set(), []
        self.now = {"event": MIN_WATERMARK, "processing": 0}

    def do(self, step):
        if step[0] in ("watermark", "clock"):
            self.move("event" if step[0] == "watermark" else "processing", step[1])
            return
        key, command, domain, time = step
        (self.timers.add if command == "register" else self.timers.discard)((domain, time, key))

    def move(self, domain, to):
        self.now[domain] = max(self.now[domain], to)
        due = sorted(timer for timer in self.timers if timer[0] == domain and timer[1] <= self.now[domain])
        self.timers.difference_update(due)
        heapq.heapify(due)
        while due:
            _, time, key = heapq.heappop(due)
            self.fired.append((key, domain, time))
            if time % 2 == 0:
                follower = (domain, time + 5, key)
                if time + 5 > self.now[domain]:
                    self.timers.add(follower)
                elif follower not in due:
                    heapq.heappush(due, follower)


TIMES = st.integers(-30, 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from("abcd"), st.sampled_from(["register", "register", "delete"]), st.just("event"), TIMES
        ),
        st.tuples(
            st.sampled_from("abcd"),
            st.sampled_from(["register", "delete"]),
            st.just("processing"),
            st.integers(70, 90),
        ),
        st.tuples(st.just("watermark"), TIMES),
        st.tuples(st.just("clock"), st.integers(60, 100)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, cut=st.integers(0, 30), widths=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_timers_agree_with_a_plain_computation_through_a_snapshot_and_rescaling(backend, steps, cut, widths):
    tasks, plain, fired = Tasks(widths[0], backend), Plain(), []
    for place, step in enumerate(steps):
        if place == cut:
            tasks = Tasks(widths[1], backend, tasks.stop(), plain.now["processing"])
            again = ("watermark", plain.now["event"])
            if plain.now["event"] > MIN_WATERMARK:  # the source would say it again
                tasks.do(again)
                plain.do(again)
        if step[0] == "clock":
            step = ("clock", max(step[1], plain.now["processing"]))
        if step[0] == "watermark" and step[1] <= plain.now["event"]:
            continue  # it never goes back, and nothing happens
        if len(step) == 4 and step[2] == "processing" and step[3] <= plain.now["processing"]:
            continue  # it would fire at once, or with the next step: when is not promised
        tasks.do(step)
        plain.do(step)
        fired += tasks.take()
    last = ("watermark", 1000)
    tasks.do(last)
    plain.do(last)
    fired += tasks.take()
    tasks.close()
    assert sorted(fired) == sorted(plain.fired)
    for key in "abcd":  # in order of time, where the order is promised
        assert [one for one in fired if one[0] == key] == [one for one in plain.fired if one[0] == key]


@pytest.mark.parametrize("time", [1 << 63, -(1 << 63) - 1, 1.5, None, True])
def test_a_time_that_no_timer_can_have(time):
    told = pytest.raises(HeadraceError, match="a timer's time is an int of 64 bits in milliseconds, got")
    with OneInputHarness(Commands(), key=lambda row: row[0]) as one, told:
        one.process_element(("a", "register", "event", time))
