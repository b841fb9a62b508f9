"""Asynchronous calls: order, capacity, timeouts, retries, watermarks, and what a checkpoint holds."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from effort import examples
from headrace import (
    AsyncFunction,
    AsyncRetryStrategy,
    FixedDelayRetryStrategy,
    HeadraceError,
    InvalidArgument,
    ProcessFunction,
    StreamExecutionEnvironment,
    Time,
    TimestampAssigner,
    UserCodeError,
    WatermarkStrategy,
)
from headrace.testing import OneInputHarness, run
from headrace.worker.event_loops import make_loop


class Sleeper(AsyncFunction):
    """Takes as many virtual milliseconds as the record says."""

    async def async_invoke(self, value):
        await asyncio.sleep(value / 1000)
        return [value]


def harness(function, restore=None, timeout=1000, **how):
    return OneInputHarness.of(lambda stream: stream.map_async(function, timeout, **how), restore=restore)


def times(one, until, step=10):
    """What leaves at which time."""
    found = {}
    for now in range(step, until + 1, step):
        one.set_processing_time(now)
        if rows := one.take():
            found[now] = rows
    return found


def test_results_leave_in_the_order_of_their_records():
    with harness(Sleeper()) as one:
        one.process_elements([30, 10, 20, 0, 40])
        assert one.take() == []
        assert times(one, 40) == {30: [30, 10, 20, 0], 40: [40]}


def test_or_as_they_are_done():
    with harness(Sleeper(), ordered=False) as one:
        one.process_elements([30, 10, 20, 0, 40])
        assert one.take() == [0]
        assert times(one, 40) == {10: [10], 20: [20], 30: [30], 40: [40]}


def test_timestamps_stay_with_the_records():
    async def twice(value):
        await asyncio.sleep(0.01 if value == 1 else 0)
        return value * 2

    with harness(twice, ordered=False) as one:
        one.process_element(1, timestamp=100)
        one.process_element(2, timestamp=200)
        one.process_element(3)
        one.set_processing_time(10)
        assert one.take_with_timestamps() == [(4, 200), (6, None), (2, 100)]


@pytest.mark.parametrize("ordered", [True, False])
def test_no_record_leaves_behind_a_watermark_that_came_after_it(ordered):
    class Lateness(ProcessFunction):
        def process_element(self, value, ctx):
            yield value, ctx.timestamp() - ctx.timer_service().current_watermark()

    def program(env):
        env.get_configuration().set_string("pipeline.auto-watermark-interval", "1 ms")
        delays = env.from_datagen(lambda n: (n, n * 7 % 30), count=100, rate=500.0)
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(ByNumber())
        slow = delays.assign_timestamps_and_watermarks(strategy).map_async(delayed, 1000, ordered=ordered)
        return slow.process(Lateness())

    async def delayed(value):
        await asyncio.sleep(value[1] / 1000)
        return value

    records = run(program).records
    assert sorted(number for (number, _), _ in records) == list(range(100))
    assert min(ahead for _, ahead in records) > 0
    assert sum(ahead < 1000 for _, ahead in records) > 50  # watermarks do come through


class ByNumber(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[0] * 10


def test_unordered_results_overtake_each_other_between_two_watermarks():
    with harness(Sleeper(), ordered=False) as one:
        one.process_element(20, timestamp=1)
        one.process_element(10, timestamp=2)
        one.process_watermark(5)
        one.process_element(0, timestamp=6)
        assert one.take() == []  # it is done, but a watermark is in front of it
        assert one.watermark < 5
        one.set_processing_time(10)
        assert one.take() == [10]
        one.set_processing_time(20)
        assert one.take() == [20, 0]
        assert one.watermark == 5


def test_at_most_so_many_calls_are_under_way():
    running, most = 0, 0

    async def counted(value):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return value

    result = run(lambda env: env.from_collection(range(50)).map_async(counted, 1000, capacity=4))
    assert result.records == list(range(50))
    assert result.time >= 120  # 50 records, 4 at a time, 10 ms each


def test_a_call_that_takes_too_long_fails_the_job():
    with harness(Sleeper(), timeout=Time.milliseconds(50)) as one:
        one.process_elements([10, 90])
        one.set_processing_time(49)
        assert one.take() == [10]
        with pytest.raises(UserCodeError, match="TimeoutError: the asynchronous call for 90 took too long"):
            one.set_processing_time(50)


def test_or_gives_what_its_function_says():
    class Patient(Sleeper):
        def timeout(self, value):
            return [-value, -value]

    with harness(Patient(), timeout=50) as one:
        one.process_elements([90, 10])
        assert times(one, 100) == {50: [-90, -90, 10]}


class Flaky(AsyncFunction):
    """Fails, or gives nothing, the first times."""

    def __init__(self, error=None):
        self.error = error

    def open(self, runtime_context):
        self.calls = []

    async def async_invoke(self, value):
        self.calls.append(value)
        if self.calls.count(value) < 3:
            if self.error is not None:
                raise self.error
            return []
        return [value]


def test_calls_are_made_again_after_a_result():
    retry = AsyncRetryStrategy.fixed_delay(5, 10, result_predicate=lambda result: not result)
    with harness(Flaky(), retry=retry) as one:
        one.process_element("a")
        assert times(one, 50) == {20: ["a"]}
        assert one.function.calls == ["a"] * 3


def test_calls_are_made_again_after_an_exception_with_longer_pauses():
    retry = AsyncRetryStrategy.exponential_backoff(5, 10, 1000, 3.0, None, lambda error: isinstance(error, OSError))
    with harness(Flaky(OSError("gone")), retry=retry) as one:
        one.process_element("a")
        assert times(one, 100) == {40: ["a"]}
    with (
        harness(Flaky(KeyError("other")), retry=retry) as one,
        pytest.raises(UserCodeError, match="KeyError: 'other'"),
    ):
        one.process_element("a")


def test_after_the_last_call_its_result_counts():
    retry = FixedDelayRetryStrategy(1, 10, lambda result: not result, lambda error: True)
    with harness(Flaky(), retry=retry) as one:
        one.process_element("a")
        assert times(one, 50) == {}  # an empty result
        assert one.function.calls == ["a"] * 2
    with harness(Flaky(ValueError("never")), retry=retry) as one:
        one.process_element("a")
        with pytest.raises(UserCodeError, match="ValueError: never"):
            one.set_processing_time(50)


def test_all_calls_together_have_one_time():
    retry = FixedDelayRetryStrategy(100, 30, lambda result: True)
    with harness(Flaky(), timeout=100, retry=retry) as one:
        one.process_element("a")
        with pytest.raises(UserCodeError, match="took too long"):
            one.set_processing_time(100)
        assert one.function.calls == ["a"] * 4


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r"async_invoke must return a list of records, got nothing; return \[\] for no record"),
        (7, "async_invoke must return a list of records, got int"),
    ],
)
def test_results_that_are_no_lists(result, message):
    class Wrong(AsyncFunction):
        async def async_invoke(self, value):
            return result

    with harness(Wrong()) as one, pytest.raises(UserCodeError, match=message):
        one.process_element("a")


def test_an_exception_names_the_operator_and_the_record():
    async def fails(value):
        raise ValueError("no such order")

    with pytest.raises(UserCodeError) as caught:
        run(lambda env: env.from_collection(["order 7"]).map_async(fails, 1000).name("look up"))
    assert "ValueError: no such order" in str(caught.value)
    assert "look up" in str(caught.value)
    assert "order 7" in str(caught.value)


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_in_flight_is_called_again_after_a_restore(ordered):
    """SPEC R6.1: the snapshot has every record in front of the barrier that has not left."""
    with harness(Sleeper(), ordered=ordered) as one:
        one.process_elements([30, 10, 50])
        one.set_processing_time(10)
        before = one.take()
        snapshot = one.snapshot()
        one.set_processing_time(100)
        after = one.take()
    assert (before, sorted(before + after)) == ([] if ordered else [10], [10, 30, 50])
    with harness(Sleeper(), snapshot, ordered=ordered) as other:
        other.process_elements([0])
        other.set_processing_time(100)
        assert other.take() == ([30, 10, 50, 0] if ordered else [0, 30, 50])


def test_what_waits_for_room_is_in_the_checkpoint_too():
    def program(env):
        return env.from_collection([10] * 20).map_async(Sleeper(), 1000, capacity=3)

    first = run(program, until=15, snapshot=True, slice_records=2)
    rest = run(program, restore=first.snapshot)
    assert 0 < len(first.records) < 20
    assert len(first.records) + len(rest.records) == 20


def test_a_barrier_waits_behind_records_for_which_there_is_no_room():
    with harness(Sleeper(), capacity=2) as one:
        one.process_elements([10, 10])
        with pytest.raises(HeadraceError, match="asynchronous calls are at their capacity; move the time"):
            one.snapshot()


def test_the_end_waits_for_what_is_in_flight():
    with harness(Sleeper()) as one:
        one.process_elements([30])
        one.end_input()
        assert one.take() == []
        snapshot_id = one.checkpoint_id
        one.set_processing_time(30)
        assert one.take() == [30]
        assert snapshot_id == one.checkpoint_id


@pytest.mark.parametrize("seed", range(examples(5)))
@pytest.mark.parametrize("ordered", [True, False])
def test_each_record_leaves_once_whatever_the_order_of_subtasks(seed, ordered):
    def program(env):
        numbers = env.from_sequence(1, 200, rate=2000.0)
        slow = numbers.map_async(Sleeper(), 5000, capacity=7, ordered=ordered)
        return slow.key_by(lambda n: n % 3).map_async(Sleeper(), 5000, ordered=ordered)

    whole = run(program, parallelism=2, seed=seed)
    assert sorted(whole.records) == list(range(1, 201))
    assert run(program, parallelism=2, seed=seed).records == whole.records  # the same seed, the same run
    cut = run(program, parallelism=2, seed=seed, until=40 + seed * 5, snapshot=True)
    rest = run(program, parallelism=3, seed=seed, restore=cut.snapshot)
    assert sorted(cut.records + rest.records) == list(range(1, 201))


# --- the event loop ---------------------------------------------------------------------------------------------------


class Services:
    lockstep = False

    def __init__(self):
        self.woken = threading.Event()

    def now(self):
        return int(time.time() * 1000)

    def wake(self):
        self.woken.set()


def test_threads_and_sockets_are_waited_for_in_virtual_time():
    async def outside(value):
        await asyncio.to_thread(time.sleep, 0.02)
        reader, writer = await asyncio.open_connection(sock=None, host="127.0.0.1", port=port)
        answer = await reader.read()
        writer.close()
        return value, answer

    import socketserver

    class Answer(socketserver.BaseRequestHandler):
        def handle(self):
            time.sleep(0.02)
            self.request.sendall(b"ok")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = run(lambda env: env.from_collection([1, 2]).map_async(outside, 60_000))
        server.shutdown()
    assert result.records == [(1, b"ok"), (2, b"ok")]
    assert result.time < 60_000  # it did not jump to the timeout


def test_a_loop_in_a_thread_wakes_the_subtask():
    from headrace.worker.operators.async_wait import _Call

    services = Services()
    loop = make_loop(services)
    fast, slow = _Call(0, None), _Call(60_000, None)
    fast.attempts = slow.attempts = 1
    loop.run([(Sleeper(), fast), (Sleeper(), slow)])
    assert services.woken.wait(120)
    assert [(call, result, error) for call, result, error in loop.take(lambda: None)] == [(fast, [0], None)]
    assert not loop.has_results()
    loop.cancel(slow)
    loop.close()
    assert not loop._thread.is_alive()


# --- programs ---------------------------------------------------------------------------------------------------------


class Cancelled(AsyncFunction):
    """Waits for something that is cancelled elsewhere."""

    async def async_invoke(self, value):
        pending = asyncio.ensure_future(asyncio.sleep(3600))
        asyncio.get_running_loop().call_soon(pending.cancel)
        await pending


@pytest.mark.parametrize("timeout", [None, 1000])
def test_a_call_that_is_cancelled_from_elsewhere_fails_at_once(timeout):
    def call():
        with harness(Cancelled(), timeout=timeout) as one:
            one.process_element(1)
            one.set_processing_time(1)

    with pytest.raises(UserCodeError, match="async_invoke, or what it waited for, was cancelled"):
        call()


def test_what_is_refused():
    stream = StreamExecutionEnvironment.local().from_collection([1])

    async def good(value):
        return value

    class NotAsync(AsyncFunction):
        def async_invoke(self, value):
            return [value]

    for build, message in [
        (lambda: stream.map_async(str, 1), "map_async() needs an `async def` function or an AsyncFunction"),
        (
            lambda: stream.map_async(NotAsync(), 1),
            "'async_invoke' of NotAsync must be declared as 'async def', and return a list",
        ),
        (lambda: stream.map_async(good, 1, capacity=0), "capacity must be at least 1, got 0"),
        (lambda: stream.map_async(good, 1, retry=3), "retry must be an AsyncRetryStrategy, got 3"),
        (lambda: stream.map_async(good, None, retry=FixedDelayRetryStrategy(1, 1)), "need a timeout, got None"),
        (lambda: stream.map_async(good, "1 s"), "'1 s' is not a duration"),
    ]:
        with pytest.raises(InvalidArgument) as caught:
            build()
        assert message in str(caught.value)


def test_typed_streams_and_event_time():
    async def length(row):
        await asyncio.sleep(row.at / 1000)
        return row.word, len(row.word)

    def program(env):
        words = env.from_collection([("a", 5), ("bcd", 1)], "word string, at bigint")
        timed = words.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        )
        return timed.map_async(length, 1000, "word string, n bigint", ordered=False)

    assert run(program).records == [("bcd", 3), ("a", 1)]
