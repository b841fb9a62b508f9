"""The local runtime: the same answer as any runtime, the same order for the same seed, and a clock that jumps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    SourceFunction,
    StreamExecutionEnvironment,
)
from headrace.api.sources import Source, SourceReader
from headrace.errors import IllegalState, UserCodeError
from headrace.job.status import JobStatus
from headrace.records.batch import Batch


def local(parallelism=1, **options):
    env = StreamExecutionEnvironment.local(**options)
    return env.set_parallelism(parallelism)


def collect(build, **options):
    return list(build(local(**options)).execute_and_collect())


# --- the same program, whatever the parallelism and the order -------------------------------------------------------


def everything(env):
    """Union, connect, side output, skip-level edge, diamond, every partitioner."""
    tag = OutputTag("odd")

    class Split(ProcessFunction):
        def process_element(self, value, ctx):
            yield (tag, ("odd", value)) if value % 2 else value

    numbers = env.from_sequence(1, 40)
    split = numbers.rebalance().process(Split())
    left = split.shuffle().map(lambda n: ("left", n))
    right = split.get_side_output(tag).rescale().map(lambda pair: ("right", pair[1]))
    far = left.partition_custom(lambda key, n: key % n, lambda pair: pair[1]).map(lambda pair: pair)
    everybody = env.from_collection(["b"]).broadcast().map(lambda b: (b, 0)).filter(lambda pair: False)
    joined = far.global_().union(right, numbers.map(lambda n: ("skip", n)), everybody)
    return joined.key_by(lambda pair: pair[1]).map(lambda pair: pair)


EXPECTED = sorted(
    [("left", n) for n in range(2, 41, 2)]
    + [("right", n) for n in range(1, 41, 2)]
    + [("skip", n) for n in range(1, 41)]
)


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("seed", [None, 1])
def test_a_program_with_everything(parallelism, seed):
    assert sorted(collect(everything, parallelism=parallelism, seed=seed)) == EXPECTED


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 50))
@settings(max_examples=25, deadline=None)
def test_any_order_gives_the_same_records(seed, parallelism, slice_records):
    assert sorted(collect(everything, parallelism=parallelism, seed=seed, slice_records=slice_records)) == EXPECTED


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_same_seed_gives_the_same_order(seed):
    runs = [collect(everything, parallelism=3, seed=seed, slice_records=3) for _ in range(2)]
    assert runs[0] == runs[1]


def test_another_seed_gives_another_order():
    runs = {tuple(collect(everything, parallelism=3, seed=seed, slice_records=3)) for seed in range(5)}
    assert len(runs) > 1


class Numbers(SourceFunction):
    def __init__(self, count):
        self.count = count

    def run(self, ctx):
        for n in range(self.count):
            ctx.collect(n)

    def cancel(self):
        pass


def test_source_functions_do_not_disturb_the_order():
    def build(env):
        first, second = env.add_source(Numbers(20)), env.add_source(Numbers(20))
        return first.map(lambda n: ("a", n)).union(second.map(lambda n: ("b", n))).rebalance().map(lambda p: p)

    runs = {tuple(collect(build, parallelism=2, seed=7, slice_records=2)) for _ in range(5)}
    assert len(runs) == 1


@pytest.mark.parametrize("parallelism", [1, 3])
def test_order_per_channel_is_kept(parallelism):
    def build(env):
        return env.from_sequence(1, 300).key_by(lambda n: n % 7).map(lambda n: n)

    got = collect(build, parallelism=parallelism, seed=3, slice_records=5)
    sources = [range(1, 301)] if parallelism == 1 else None
    for rest in range(7):
        mine = [n for n in got if n % 7 == rest]
        assert sorted(mine) == [n for n in range(1, 301) if n % 7 == rest]
        if sources:
            assert mine == sorted(mine)


def test_subtasks_do_not_share_the_users_objects():
    class Counting(MapFunction):
        def __init__(self):
            self.seen = []

        def map(self, value):
            self.seen.append(value)
            return len(self.seen)

    function = Counting()
    got = collect(lambda env: env.from_sequence(1, 10).rebalance().map(function), parallelism=2)
    assert function.seen == []
    assert sorted(got) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


# --- virtual time ---------------------------------------------------------------------------------------------------


class Alarm(KeyedProcessFunction):
    def __init__(self, delay):
        self.delay = delay

    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + self.delay)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp


def hour_of_ticks(env):
    """One record a second for an hour, and an alarm for each."""
    return env.from_datagen(lambda n: n, count=3600, rate=1.0).key_by(lambda n: n).process(Alarm(10_500))


def test_an_hour_passes_in_a_moment():
    """Processing-time timers that are not due when the input ends do not fire."""
    got = collect(hour_of_ticks, start_time=1_000_000)
    assert len(got) in range(3585, 3591)
    assert all(1_000_000 < at < 1_000_000 + 3600_000 for _, at in got)
    assert [key for key, _ in got] == sorted(key for key, _ in got)


def test_until_does_all_that_is_due_then():
    def build(env):
        return env.from_datagen(lambda n: n, rate=10.0).key_by(lambda n: n).process(Alarm(100)).rebalance().map(str)

    env = local(until=1000)
    job = build(env).execute_and_collect()
    got = list(job)
    assert got[-1].endswith(", 1000)")
    assert job.job.status is JobStatus.FINISHED


def test_until_before_the_first_record():
    assert collect(lambda env: env.from_datagen(str, rate=1.0), until=0) == ["0"]


class Nothing(Source):
    def splits(self, parallelism):
        return []

    def reader(self, context, splits):
        class Reader(SourceReader):
            def poll(self, max_records):
                return None

            def snapshot(self):
                return []

        return Reader()


def test_a_run_that_can_never_go_on_is_noticed():
    with pytest.raises(IllegalState, match="the local run is stuck: no subtask has work, and none waits for a time"):
        collect(lambda env: env.from_source(Nothing()))


def test_a_silent_source_may_wait_until():
    assert collect(lambda env: env.from_source(Nothing()), until=100) == []


class Later(Source):
    """One record at each of these times."""

    def __init__(self, times):
        self.times = times

    def splits(self, parallelism):
        return [0]

    def reader(self, context, splits):
        times = list(self.times) if splits else []

        class Reader(SourceReader):
            finished = not times

            def poll(self, max_records):
                if not times or times[0] > context.clock():
                    return None
                batch = Batch.of_rows([times.pop(0)])
                self.finished = not times
                return batch

            def ready_at(self):
                return times[0] if times else None

            def snapshot(self):
                return []

        return Reader()


def test_the_clock_jumps_to_the_next_deadline_and_never_back():
    class Clock(ProcessFunction):
        def process_element(self, value, ctx):
            yield value, ctx.timer_service().current_processing_time()

    got = collect(lambda env: env.from_source(Later([5, 5, 100, 40_000])).process(Clock()), start_time=3)
    assert got == [(5, 5), (5, 5), (100, 100), (40_000, 40_000)]


# --- ends and failures ----------------------------------------------------------------------------------------------


def test_an_empty_collection():
    assert collect(lambda env: env.from_collection([]).rebalance().map(str), parallelism=2) == []


def test_print_goes_to_stdout_with_the_subtask_in_front(capsys):
    env = local()
    env.from_collection(["a", "b"]).print()
    env.execute()
    assert capsys.readouterr().out == "a\nb\n"
    env = local(2)
    env.from_collection(["a", "b"]).print("words")
    env.execute()
    assert sorted(capsys.readouterr().out.splitlines()) in (["words:1> a", "words:2> b"], ["words:1> b", "words:2> a"])


def test_the_job_client():
    env = local(seed=5)
    env.from_collection([1]).print()
    client = env.execute_async("name")
    assert client.get_job_status() is JobStatus.FINISHED
    assert len(client.get_job_id()) == 32
    assert client.wait().get_job_id() == client.get_job_id()
    assert client.cancel() is JobStatus.FINISHED


def fail(value):
    raise ValueError(f"no {value}")


def test_a_failure_is_the_jobs_error():
    env = local()
    env.from_collection([1]).map(fail).name("failing").print()
    client = env.execute_async()
    assert client.get_job_status() is JobStatus.FAILED
    with pytest.raises(UserCodeError, match="ValueError: no 1") as caught:
        client.wait()
    assert "test_local.py:" in str(caught.value).split("\n")[0]
    assert any("in fail" in note for note in caught.value.__notes__)


class Closing(MapFunction):
    closed: list[str] = []  # noqa: RUF012 - shared on purpose: functions are copied into the subtask

    def __init__(self, name, failing="", on_map=False):
        self.name, self.failing, self.on_map = name, failing, on_map

    def map(self, value):
        if self.on_map:
            raise ValueError("in map")
        return value

    def close(self):
        Closing.closed.append(self.name)
        if self.name == self.failing:
            raise RuntimeError("in close")


def test_a_failure_in_close_is_reported_when_all_are_closed():
    Closing.closed.clear()
    with pytest.raises(UserCodeError, match="RuntimeError: in close"):
        collect(lambda env: env.from_collection([1]).map(Closing("a", "a")).rebalance().map(Closing("b")))
    assert Closing.closed == ["a", "b"]


def test_a_failure_in_close_does_not_hide_the_first_one():
    Closing.closed.clear()
    with pytest.raises(UserCodeError, match="ValueError: in map"):
        collect(lambda env: env.from_collection([1]).map(Closing("a", "a")).rebalance().map(Closing("b", "b", True)))
    assert Closing.closed == ["a", "b"]


def test_a_wrong_type_names_the_operator_that_made_it():
    """Also when the record is only encoded, or only read by the next operator of the chain."""
    for build in (
        lambda env: env.from_collection([1]).map(str, "bigint").name("M").rebalance().map(str),
        lambda env: env.from_collection([1]).map(str, "a int, b int").name("M").map(str),
    ):
        with pytest.raises(UserCodeError) as caught:
            collect(build)
        assert "the function returned a wrong type: expected " in str(caught.value)
        assert "in operator 'M', defined at" in str(caught.value)


def test_a_record_that_cannot_be_pickled_names_the_operator():
    with pytest.raises(UserCodeError) as caught:
        collect(lambda env: env.from_collection([1]).map(lambda n: lambda: n).name("M").rebalance().map(str))
    assert "a record cannot be sent to the next operator: a function cannot be pickled" in str(caught.value)
    assert "in operator 'M'" in str(caught.value)


def test_iterating_stops_at_the_failure():
    env = local()
    records = env.from_collection([1, 2]).map(lambda n: 1 // (2 - n)).execute_and_collect()
    with pytest.raises(UserCodeError, match="ZeroDivisionError"):
        list(records)


def test_a_closed_iterator_does_not_complain():
    env = local()
    with env.from_collection([1, 2]).map(fail).execute_and_collect() as records:
        records.close()
    assert list(records) == []
