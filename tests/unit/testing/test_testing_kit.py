"""The public test kit: whole programs, single functions, time, snapshots and rescaling."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    CoFlatMapFunction,
    CoProcessFunction,
    FilterFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
    SourceFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from headrace.errors import GraphError, IllegalState, InvalidArgument, UserCodeError
from headrace.records.key_groups import key_group, owner
from headrace.testing import OneInputHarness, TwoInputHarness, local_runtime, run

# --- programs -------------------------------------------------------------------------------------------------------


def test_one_stream():
    result = run(lambda env: env.from_collection([1, 2]).map(str))
    assert result.records == ["1", "2"]
    assert result.printed == []
    assert result.snapshot is None


def test_several_streams_and_printed_lines():
    def build(env):
        numbers = env.from_collection([1, 2, 3])
        numbers.print()
        return {"odd": numbers.filter(lambda n: n % 2), "even": numbers.filter(lambda n: n % 2 == 0)}

    result = run(build)
    assert result["odd"] == [1, 3]
    assert result["even"] == [2]
    assert result.printed == ["1", "2", "3"]
    with pytest.raises(
        IllegalState, match=r"did not return exactly one stream \(it has: odd, even\); use result\['name'\]"
    ):
        _ = result.records


def test_a_program_that_returns_nothing():
    result = run(lambda env: env.from_collection(["a\nb"]).print() and None)
    assert result.printed == ["a", "b"]


@pytest.mark.parametrize("returned", [[1], (1, 2), {"x": 5}])
def test_a_program_that_returns_something_else(returned):
    with pytest.raises(
        InvalidArgument, match="a program returns a DataStream, a dict of name -> DataStream, or nothing"
    ):
        run(lambda env: returned)


def test_typed_streams_come_back_as_rows():
    result = run(lambda env: env.from_collection([("a", 1)], "word string, n bigint"))
    assert result.records[0].word == "a"


def test_configuration():
    def build(env):
        return env.from_collection([1]).map(str)

    assert run(build, configuration={"pipeline.operator-chaining.enabled": False}).records == ["1"]


def test_errors_of_the_program():
    with pytest.raises(UserCodeError, match=r"test_testing_kit.py:\d+: ZeroDivisionError"):
        run(lambda env: env.from_collection([0]).map(lambda n: 1 // n))
    with pytest.raises(GraphError, match="unknown column"):
        run(lambda env: env.from_collection([(1,)], "a int").key_by("b"))


def test_the_same_arguments_give_the_same_run():
    def build(env):
        return env.from_sequence(1, 50).shuffle().map(lambda n: n).rebalance().map(lambda n: n)

    runs = [run(build, parallelism=3, seed=seed, slice_records=3).records for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert sorted(runs[0]) == sorted(runs[2]) == list(range(1, 51))
    assert runs[0] != runs[2]


def test_time():
    result = run(lambda env: env.from_datagen(lambda n: n, rate=2.0), start_time=1000, until=3000)
    assert result.records == [0, 1, 2, 3, 4]
    assert result.time == 3000


class Counting(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", default=0))

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield value % 5, self.count.value()


def counts(env):
    return env.from_datagen(lambda n: n, count=60, rate=10.0).key_by(lambda n: n % 5).process(Counting())


@given(st.integers(0, 7000), st.integers(1, 4), st.integers(1, 4), st.none() | st.integers(0, 100), st.integers(1, 20))
@settings(max_examples=30, deadline=None)
def test_a_run_cut_in_two_gives_what_the_whole_gives(cut, before, after, seed, slice_records):
    """Exactly once: over a snapshot at any time, with any parallelism before and after."""
    options = {"seed": seed, "slice_records": slice_records}
    first = run(counts, until=cut, parallelism=before, snapshot=True, **options)
    second = run(counts, start_time=cut, parallelism=after, restore=first.snapshot, **options)
    assert sorted(first.records + second.records) == sorted((key, n) for key in range(5) for n in range(1, 13))
    assert sorted(run(counts, parallelism=after, **options).records) == sorted(first.records + second.records)


class Positions(SourceFunction, CheckpointedFunction):
    """Flink's CounterSource: the next number is operator state."""

    def __init__(self, end):
        self.end, self.next, self.running = end, 0, True

    def initialize_state(self, context):
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("next"))
        for value in self.state.get():
            self.next = value

    def snapshot_state(self, context):
        self.state.update([self.next])

    def run(self, ctx):
        while self.running and self.next < self.end:
            with ctx.get_checkpoint_lock():
                ctx.collect(self.next)
                self.next += 1

    def cancel(self):
        self.running = False


class Later(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(5000 + value)

    def on_timer(self, timestamp, ctx):
        yield timestamp


@pytest.mark.parametrize("parallelism", [1, 3])
def test_timers_survive_a_snapshot(parallelism):
    def build(env):
        return env.from_datagen(lambda n: n, rate=1.0).key_by(lambda n: n).process(Later())

    first = run(build, until=3000, snapshot=True, parallelism=2)
    second = run(build, start_time=3000, until=5001, restore=first.snapshot, parallelism=parallelism)
    assert first.records == []
    assert sorted(second.records) == [5000, 5001]


@pytest.mark.parametrize("cut", [1, 37, 99])
def test_a_source_function_goes_on_where_it_was(cut):
    def build(env):
        return env.add_source(Positions(100)).uid("source").rebalance().map(lambda n: n)

    first = run(build, until=lambda result: len(result.records) >= cut, snapshot=True)
    second = run(build, restore=first.snapshot)
    assert len(first.records) == cut  # whatever the source's thread does meanwhile
    assert first.records + second.records == list(range(100))


def test_until_ends_a_source_that_never_does():
    class Endless(Positions):
        def run(self, ctx):
            while self.running:
                ctx.collect(1)

    assert len(run(lambda env: env.add_source(Endless(0)), until=lambda r: len(r.records) == 5).records) == 5


def test_state_of_an_operator_that_is_gone():
    first = run(counts, until=1000, snapshot=True)
    with pytest.raises(
        IllegalState, match=r"the snapshot has state of operator [0-9a-f]{32}, which the program does not have"
    ):
        run(lambda env: env.from_collection([1]), restore=first.snapshot)


def test_another_max_parallelism():
    first = run(counts, until=1000, snapshot=True)
    with pytest.raises(IllegalState, match="max parallelism mismatch"):
        run(counts, restore=first.snapshot, configuration={"pipeline.max-parallelism": 64})


def test_local_runtime(capsys):
    def main():
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection([1]).print()
        return env.execute()

    with local_runtime(seed=1):
        main()
        with local_runtime():
            main()
        main()
    assert capsys.readouterr().out == "1\n1\n1\n"
    assert StreamExecutionEnvironment.get_execution_environment()._local is None


def test_local_runtime_ends_with_an_error_too():
    with pytest.raises(ZeroDivisionError), local_runtime():
        1 // 0  # noqa: B018 - the error is the point
    assert StreamExecutionEnvironment.get_execution_environment()._local is None


def test_python_files_in_the_local_runtime(tmp_path, monkeypatch):
    (tmp_path / "shipped_module.py").write_text("def shout(s):\n    return s + '!'\n")
    monkeypatch.setattr("sys.path", list(__import__("sys").path))

    def build(env):
        env.add_python_file(str(tmp_path / "shipped_module.py"))
        import shipped_module

        return env.from_collection(["a"]).map(shipped_module.shout)

    assert run(build).records == ["a!"]


# --- one input ------------------------------------------------------------------------------------------------------

LATE = OutputTag("late", "bigint")


class Splitting(ProcessFunction):
    def process_element(self, value, ctx):
        yield (LATE, value) if value < 0 else (value, ctx.timestamp())


def test_outputs_and_side_outputs():
    with OneInputHarness(Splitting(), side_outputs=[LATE]) as harness:
        harness.process_element(1, timestamp=10)
        harness.process_element(-2)
        harness.process_element(3)
        assert harness.take() == [(1, 10), (3, None)]
        assert harness.take() == []
        assert harness.take_side_output(LATE) == [-2]
        with pytest.raises(InvalidArgument, match="unknown side output 'other': give the harness side_outputs="):
            harness.take_side_output(OutputTag("other"))


class Twice(MapFunction):
    def open(self, runtime_context):
        self.opened = True
        self.where = runtime_context.get_task_name_with_subtasks()

    def map(self, value):
        return value * 2

    def close(self):
        self.opened = False


def test_the_function_is_opened_closed_and_can_be_looked_at():
    harness = OneInputHarness(Twice(), parallelism=3, subtask=2)
    with pytest.raises(IllegalState, match="open the harness first"):
        harness.process_element(1)
    with harness:
        assert harness.function.opened
        assert harness.function.where == "Map (3/3)#0"
        harness.process_elements([1, 2])
        assert harness.take() == [2, 4]
    assert not harness.function.opened


@pytest.mark.parametrize(
    ("function", "options", "given", "taken"),
    [
        (str.upper, {"method": "map"}, ["a"], ["A"]),
        (str.split, {"method": "flat_map"}, ["a b"], ["a", "b"]),
        (type("F", (FilterFunction,), {"filter": lambda self, v: v > 1})(), {}, [1, 2], [2]),
        (lambda a, b: a + b, {"method": "reduce", "key": lambda n: 0}, [1, 2, 3], [1, 3, 6]),
        (type("R", (ReduceFunction,), {"reduce": lambda self, a, b: a + b})(), {"key": lambda n: 0}, [1, 2], [1, 3]),
    ],
)
def test_kinds_of_functions(function, options, given, taken):
    with OneInputHarness(function, **options) as harness:
        harness.process_elements(given)
        assert harness.take() == taken


def test_a_callable_without_a_method():
    with pytest.raises(
        InvalidArgument, match=r"cannot tell what .* is for: make it a subclass of one of .*, or say method='map'"
    ):
        OneInputHarness(lambda n: n)


@pytest.mark.parametrize("subtask", [-1, 2])
def test_a_subtask_that_does_not_exist(subtask):
    with pytest.raises(InvalidArgument, match=f"subtask must be from 0 to 1, got {subtask}"):
        OneInputHarness(Twice(), parallelism=2, subtask=subtask)


class Remember(SinkFunction):
    def open(self, runtime_context):
        self.seen, self.done = [], False

    def invoke(self, value, context):
        self.seen.append(value)

    def finish(self):
        self.done = True


def test_a_sink():
    with OneInputHarness(Remember()) as harness:
        harness.process_elements([1, 2])
        assert harness.take() == []
        assert harness.function.seen == [1, 2]
        harness.end_input()
        assert harness.function.done


def test_typed_input_and_output():
    with OneInputHarness(
        lambda row: (row.word, row.n + 1), method="map", input_type="word string, n int", output_type="w string, m int"
    ) as harness:
        harness.process_element(("a", 1))
        (row,) = harness.take()
        assert (row.w, row.m) == ("a", 2)
        with pytest.raises(UserCodeError, match="expected row<word string, n int>, got 5"):
            harness.process_element(5)


def test_errors_are_a_jobs_errors_with_the_original_as_cause():
    with OneInputHarness(lambda n: 1 // n, method="map") as harness:
        with pytest.raises(UserCodeError, match=r"test_testing_kit.py:\d+: ZeroDivisionError") as caught:
            harness.process_element(0)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert "record 0" in str(caught.value)


class Alarm(KeyedProcessFunction):
    def process_element(self, value, ctx):
        service = ctx.timer_service()
        at = service.current_processing_time() + value
        service.register_processing_time_timer(at)
        service.register_event_time_timer(value)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, ctx.time_domain().name, ctx.timer_service().current_processing_time()


def test_timers_fire_at_their_own_time():
    with OneInputHarness(Alarm(), key=lambda n: n, start_time=1000) as harness:
        harness.process_elements([30, 10, 20])
        harness.set_processing_time(1009)
        assert harness.take() == []
        harness.set_processing_time(1025)
        assert [(key, at, now) for key, at, _, now in harness.take()] == [(10, 1010, 1010), (20, 1020, 1020)]
        assert harness.processing_time == 1025
        with pytest.raises(InvalidArgument, match="time does not run backwards: it is 1025, got 1024"):
            harness.set_processing_time(1024)
        harness.end_input()
        assert [(key, at) for key, at, *_ in harness.take()] == [(10, 10), (20, 20), (30, 30)]


# --- snapshots ------------------------------------------------------------------------------------------------------


def test_harnesses_side_by_side_do_not_share_files(tmp_path):
    options = {
        "key": lambda n: n,
        "configuration": {"state.backend.type": "rocksdb", "io.tmp.dirs": str(tmp_path / "files")},
    }
    with OneInputHarness(Counting(), **options) as first, OneInputHarness(Counting(), **options) as second:
        first.process_elements([7, 7])
        second.process_elements([7])
        assert (first.take(), second.take()) == ([(2, 1), (2, 2)], [(2, 1)])
        assert len(list((tmp_path / "files").iterdir())) == 2
    assert list((tmp_path / "files").iterdir()) == []


def test_snapshot_and_restore():
    with OneInputHarness(Counting(), key=lambda n: n) as harness:
        harness.process_elements([1, 1, 2])
        state = harness.snapshot()
        assert harness.checkpoint_id == 1
        harness.process_elements([1, 1])
        assert harness.take()[-1] == (1, 4)
    assert isinstance(state, bytes)
    with OneInputHarness(Counting(), key=lambda n: n, restore=state) as harness:
        harness.process_elements([1, 2, 3])
        assert harness.take() == [(1, 3), (2, 2), (3, 1)]
        harness.snapshot()
        assert harness.checkpoint_id == 2


def test_timers_in_a_snapshot():
    with OneInputHarness(Alarm(), key=lambda n: n) as harness:
        harness.process_elements([10, 20])
        state = harness.snapshot()
    with OneInputHarness(Alarm(), key=lambda n: n, restore=state, start_time=5) as harness:
        harness.set_processing_time(100)
        assert [(key, at) for key, at, *_ in harness.take()] == [(10, 10), (20, 20)]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 4), st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_rescaling(values, before, after, cut):
    """The counts of all keys go on where they were, whoever owns the key now."""

    def place(value, parallelism):
        return owner(key_group(value, 128), 128, parallelism)

    def feed(values, parallelism, restore):
        results, states = [], []
        for subtask in range(parallelism):
            harness = OneInputHarness(
                Counting(), key=lambda n: n, parallelism=parallelism, subtask=subtask, restore=restore
            )
            with harness:
                harness.process_elements([v for v in values if place(v, parallelism) == subtask])
                states.append(harness.snapshot())
                results += harness.take()
        return results, states

    first, states = feed(values[:cut], before, None)
    second, _ = feed(values[cut:], after, states)
    expected = [(v % 5, values[: i + 1].count(v)) for i, v in enumerate(values)]
    assert sorted(first + second) == sorted(expected)


def test_a_key_of_another_subtask():
    other = next(n for n in range(100) if owner(key_group(n, 128), 128, 2) == 1)
    with (
        OneInputHarness(Counting(), key=lambda n: n, parallelism=2, subtask=0) as harness,
        pytest.raises(InvalidArgument, match="belongs to subtask 1, but the harness runs subtask 0"),
    ):
        harness.process_element(other)


class Buffering(SinkFunction, CheckpointedFunction):
    """Flink's BufferingSink, with the notifications of a two-phase sink."""

    def __init__(self):
        self.buffer, self.log = [], []

    def initialize_state(self, context):
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("buffer"))
        self.restored = context.is_restored()
        self.buffer += self.state.get()

    def snapshot_state(self, context):
        self.log.append(("snapshot", context.get_checkpoint_id()))
        self.state.update(self.buffer)

    def notify_checkpoint_complete(self, checkpoint_id):
        self.log.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id):
        self.log.append(("aborted", checkpoint_id))

    def invoke(self, value, context):
        self.buffer.append(value)


def test_operator_state_and_notifications():
    with OneInputHarness(Buffering()) as harness:
        assert not harness.function.restored
        harness.process_elements([1, 2, 3])
        state = harness.snapshot()
        harness.notify_checkpoint_complete()
        harness.snapshot()
        harness.notify_checkpoint_aborted()
        assert harness.function.log == [("snapshot", 1), ("complete", 1), ("snapshot", 2), ("aborted", 2)]
    parts = []
    for subtask in range(2):
        with OneInputHarness(Buffering(), parallelism=2, subtask=subtask, restore=state) as harness:
            assert harness.function.restored
            parts.append(harness.function.buffer)
    assert sorted(map(len, parts)) == [1, 2]
    assert sorted(parts[0] + parts[1]) == [1, 2, 3]


# --- two inputs -----------------------------------------------------------------------------------------------------


class Sides(CoFlatMapFunction):
    def flat_map1(self, value):
        yield 1, value

    def flat_map2(self, value):
        yield 2, value


class Stamps(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield 1, value, ctx.timestamp()

    def process_element2(self, value, ctx):
        yield 2, value, ctx.timestamp()


class Join(KeyedCoProcessFunction):
    """Waits for the other side; gives up after 10 ms."""

    def open(self, runtime_context):
        self.waiting = runtime_context.get_state(ValueStateDescriptor("waiting"))

    def _meet(self, side, value, ctx):
        other = self.waiting.value()
        if other is not None and other[0] != side:
            self.waiting.clear()
            yield other[1], value
        else:
            self.waiting.update((side, value))
            service = ctx.timer_service()
            service.register_processing_time_timer(service.current_processing_time() + 10)

    def process_element1(self, value, ctx):
        return self._meet(1, value, ctx)

    def process_element2(self, value, ctx):
        return self._meet(2, value, ctx)

    def on_timer(self, timestamp, ctx):
        waiting = self.waiting.value()
        if waiting is not None:
            yield "alone", waiting[1]


def test_two_inputs():
    with TwoInputHarness(Sides()) as harness:
        harness.process_element1("a")
        harness.process_element2("b")
        assert harness.take() == [(1, "a"), (2, "b")]
    with TwoInputHarness(Stamps(), input_types=("string", None)) as harness:
        harness.process_element1("a", 5)
        harness.process_element2("b", 6)
        assert harness.take() == [(1, "a", 5), (2, "b", 6)]


def test_two_keyed_inputs_share_state_and_timers():
    keys = (lambda pair: pair[0], lambda pair: pair[0])
    with TwoInputHarness(Join(), keys=keys) as harness:
        harness.process_element1(("k", 1))
        harness.process_element2(("other", 2))
        harness.process_element2(("k", 3))
        assert harness.take() == [(("k", 1), ("k", 3))]
        state = harness.snapshot()
    with TwoInputHarness(Join(), keys=keys, restore=state) as harness:
        harness.set_processing_time(10)
        assert harness.take() == [("alone", ("other", 2))]
        harness.end_input()


RULES = MapStateDescriptor("rules", "string", "bigint")


class Threshold(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        limit = ctx.get_broadcast_state(RULES).get("limit")
        if limit is not None and value > limit:
            yield value

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put("limit", value)


class KeyedThreshold(KeyedBroadcastProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "bigint", default=0))

    def process_element(self, value, ctx):
        self.seen.update(self.seen.value() + 1)
        if value[1] > (ctx.get_broadcast_state(RULES).get("limit") or 0):
            yield ctx.get_current_key(), self.seen.value()

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put("limit", value)


def test_options_of_a_harness_are_a_configuration_or_a_dict():
    with OneInputHarness(Inc(), configuration={"state.backend.type": "hashmap"}) as harness:
        harness.process_element(1)
        assert harness.take() == [2]


class Inc(MapFunction):
    def map(self, value):
        return value + 1


def test_broadcast_state():
    with TwoInputHarness(Threshold(), broadcast=[RULES]) as harness:
        harness.process_element1(5)
        harness.process_broadcast_element(3)
        harness.process_element1(5)
        harness.process_element1(2)
        assert harness.take() == [5]
        state = harness.snapshot()
    for subtask in range(3):
        with TwoInputHarness(Threshold(), broadcast=[RULES], parallelism=3, subtask=subtask, restore=state) as harness:
            harness.process_element1(4)
            harness.process_broadcast_element(10)
            harness.process_element1(4)
            assert harness.take() == [4]


NAMES = MapStateDescriptor("names", "bigint", "string")


class NamedThreshold(Threshold):
    """Uses two broadcast states: the limits, and a name for each."""

    def process_element(self, value, ctx):
        for found in super().process_element(value, ctx):
            yield ctx.get_broadcast_state(NAMES).get(ctx.get_broadcast_state(RULES).get("limit")), found

    def process_broadcast_element(self, value, ctx):
        super().process_broadcast_element(value, ctx)
        ctx.get_broadcast_state(NAMES).put(value, f"above {value}")


def test_several_broadcast_states_of_one_operator():  # SPEC R4.4
    with TwoInputHarness(NamedThreshold(), broadcast=[RULES, NAMES]) as harness:
        harness.process_broadcast_element(3)
        harness.process_element1(5)
        assert harness.take() == [("above 3", 5)]
        state = harness.snapshot()
    with TwoInputHarness(
        NamedThreshold(), broadcast=[RULES, NAMES], parallelism=2, subtask=1, restore=state
    ) as harness:
        harness.process_element1(4)
        harness.process_broadcast_element(7)
        harness.process_element1(8)
        assert harness.take() == [("above 3", 4), ("above 7", 8)]


def test_keyed_broadcast_state():
    with TwoInputHarness(KeyedThreshold(), keys=(lambda p: p[0], None), broadcast=[RULES]) as harness:
        harness.process_element1(("a", 1))
        harness.process_broadcast_element(5)
        harness.process_element1(("a", 1))
        harness.process_element1(("a", 9))
        assert harness.take() == [("a", 1), ("a", 3)]
