"""A drawn pipeline gives the same results under both roots of imports, and, where its order does not depend on them, for all
sizes of batches. Only forms differ: the class of rows, and the key beside a collected record of a keyed stream."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
import headrace.pyflink.common
import headrace.pyflink.common.watermark_strategy
import headrace.pyflink.datastream
import headrace.pyflink.datastream.functions
import headrace.pyflink.datastream.state
import headrace.pyflink.datastream.window
from effort import examples
from headrace.pyflink.common import Row as FlinkRow


def names_of(*modules: Any) -> SimpleNamespace:
    """The public names of a root in one place."""
    found = [(name, getattr(module, name)) for module in modules for name in dir(module) if not name.startswith("_")]
    return SimpleNamespace(**dict(found))


flink = headrace.pyflink
NATIVE = names_of(headrace)
FLINK = names_of(
    flink.common.watermark_strategy,
    flink.datastream.window,
    flink.datastream.state,
    flink.datastream.functions,
    flink.common,
    flink.datastream,
)

# --- records of several shapes ----------------------------------------------------------------------------------------


class Thing:
    """A record that is an object."""

    def __init__(self, key: str, n: int) -> None:
        self.key, self.n = key, n


SHAPES = ("tuple", "typed", "row", "list", "dict", "nested", "object")


def type_of(shape: str, root: Any) -> Any:
    if shape == "typed":
        return root.Types.TUPLE([root.Types.STRING(), root.Types.LONG()])
    return "key string, n bigint" if shape == "row" else None


def made(shape: str, key: str, n: int) -> Any:
    n %= 1000
    match shape:
        case "list":
            return [key, n]
        case "dict":
            return {"key": key, "n": n}
        case "nested":
            return {"key": key, "n": n, "seen": [[n], key]}
        case "object":
            return Thing(key, n)
        case _:
            return key, n


def key_of(record: Any) -> str:
    if isinstance(record, dict):
        return str(record["key"])
    return str(record.key if isinstance(record, Thing) else record[0])


def n_of(record: Any) -> int:
    if isinstance(record, dict):
        return int(record["n"])
    return int(record.n if isinstance(record, Thing) else record[1])


def change(record: Any, more: int) -> Any:
    """Add to the number of a record, in place if that is possible in both roots."""
    n = (n_of(record) + more) % 1000
    if isinstance(record, Thing):
        record.n = n
    elif isinstance(record, dict):
        record["n"] = n
        if "seen" in record:
            record["seen"][0].append(n)
            del record["seen"][0][:-3]
    elif isinstance(record, list):
        record[1] = n
    else:
        return key_of(record), n
    return record


def plain(record: Any) -> Any:
    """A record without its form."""
    if isinstance(record, Thing):
        return "object", record.key, record.n
    if isinstance(record, FlinkRow | headrace.Row):
        return "row", *map(plain, record)
    if isinstance(record, tuple | list):
        return type(record).__name__, *map(plain, record)
    if isinstance(record, dict):
        return "dict", *sorted((name, plain(value)) for name, value in record.items())
    return record


# --- steps of a pipeline ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One step: its name in STEPS, the shape of its results, a small number."""

    name: str
    shape: str
    a: int


Build = Callable[[Any, Step, Any], Any]
STEPS: dict[str, Build] = {}
ORDERED = set()  # their order does not depend on the size of batches


def step(build: Build | None = None, *, ordered: bool = True) -> Any:
    def add(build: Build) -> Build:
        STEPS[build.__name__] = build
        if ordered:
            ORDERED.add(build.__name__)
        return build

    return add if build is None else add(build)


@step
def map_to_new(stream: Any, s: Step, root: Any) -> Any:
    return stream.map(lambda r: made(s.shape, key_of(r), n_of(r) + s.a), type_of(s.shape, root))


@step
def map_in_place(stream: Any, s: Step, root: Any) -> Any:
    return stream.map(lambda r: change(r, s.a)).map(lambda r: made(s.shape, key_of(r), n_of(r)), type_of(s.shape, root))


@step
def map_to_one_object(stream: Any, s: Step, root: Any) -> Any:
    class Again(root.MapFunction):  # type: ignore[name-defined,misc]
        def open(self, runtime_context: Any) -> None:
            self.one = made(s.shape, "z", 0)

        def map(self, value: Any) -> Any:
            self.one = change(self.one, n_of(value))
            return self.one

    return stream.map(Again(), type_of(s.shape, root)) if s.shape != "row" else map_to_new(stream, s, root)


@step
def keep_some(stream: Any, s: Step, root: Any) -> Any:
    return map_to_new(stream.filter(lambda r: n_of(r) % (s.a + 2)), s, root)


@step
def flat_map_of_one_object(stream: Any, s: Step, root: Any) -> Any:
    def several(record: Any) -> Any:
        one = made(s.shape, key_of(record), n_of(record))
        for more in range(1 + n_of(record) % 3):
            one = change(one, more)
            yield one

    return stream.flat_map(several, type_of(s.shape, root))


@step
def flat_map_to_lists(stream: Any, s: Step, root: Any) -> Any:
    class Kept(root.FlatMapFunction):  # type: ignore[name-defined,misc]
        def open(self, runtime_context: Any) -> None:
            self.kept: list[Any] = []

        def flat_map(self, value: Any) -> Any:
            self.kept.append(made(s.shape, key_of(value), n_of(value)))
            self.kept = [change(record, 1) for record in self.kept[-2:]]
            return self.kept

    return stream.flat_map(Kept(), type_of(s.shape, root))


@step
def running_reduce(stream: Any, s: Step, root: Any) -> Any:
    return map_to_new(stream.key_by(key_of).reduce(lambda x, y: change(x, n_of(y))), s, root)


@step
def state_of_a_key(stream: Any, s: Step, root: Any) -> Any:
    class Counts(root.KeyedProcessFunction):  # type: ignore[name-defined,misc]
        def open(self, runtime_context: Any) -> None:
            self.last = runtime_context.get_state(root.ValueStateDescriptor("last", root.Types.PICKLED_BYTE_ARRAY()))
            self.all = runtime_context.get_list_state(root.ListStateDescriptor("all", root.Types.PICKLED_BYTE_ARRAY()))

        def process_element(self, value: Any, ctx: Any) -> Any:
            before = self.last.value()
            record = made(s.shape, ctx.get_current_key(), n_of(value) + (n_of(before) if before is not None else 0))
            self.last.update(record)
            self.all.add(copy.deepcopy(record))
            yield record
            yield change(record, sum(map(n_of, self.all.get())))

    return stream.key_by(key_of).process(Counts(), type_of(s.shape, root))


@step(ordered=False)
def side_output(stream: Any, s: Step, root: Any) -> Any:
    tag = root.OutputTag(f"side-{s.a}", type_of(s.shape, root))

    class Both(root.ProcessFunction):  # type: ignore[name-defined,misc]
        def process_element(self, value: Any, ctx: Any) -> Any:
            record = made(s.shape, key_of(value), n_of(value))
            yield record
            record = change(record, s.a)
            yield tag, record
            change(record, 500)

    main = stream.process(Both(), type_of(s.shape, root))
    return main.union(main.get_side_output(tag))


@step(ordered=False)
def branches(stream: Any, s: Step, root: Any) -> Any:
    one = stream.map(lambda r: made(s.shape, key_of(change(r, s.a)), n_of(r)), type_of(s.shape, root))
    other = stream.map(lambda r: made(s.shape, key_of(r), n_of(r)), type_of(s.shape, root))
    return one.union(other, stream.map(lambda r: made(s.shape, "b", n_of(change(r, 7))), type_of(s.shape, root)))


@step(ordered=False)
def connected_maps(stream: Any, s: Step, root: Any) -> Any:
    class Two(root.CoMapFunction):  # type: ignore[name-defined,misc]
        def open(self, runtime_context: Any) -> None:
            self.one = made(s.shape, "c", 0)

        def map1(self, value: Any) -> Any:
            self.one = change(self.one, n_of(value))
            return self.one

        def map2(self, value: Any) -> Any:
            return made(s.shape, key_of(value), n_of(value)) if n_of(value) % 2 else None

    return stream.connect(stream.map(lambda r: change(r, s.a))).map(Two(), type_of(s.shape, root))


@step(ordered=False)
def connected_state(stream: Any, s: Step, root: Any) -> Any:
    class Shared(root.KeyedCoProcessFunction):  # type: ignore[name-defined,misc]
        def open(self, runtime_context: Any) -> None:
            self.total = runtime_context.get_state(root.ValueStateDescriptor("total", root.Types.LONG()))

        def process_element1(self, value: Any, ctx: Any) -> Any:
            self.total.update((self.total.value() or 0) + n_of(value))
            yield made(s.shape, ctx.get_current_key(), self.total.value())

        def process_element2(self, value: Any, ctx: Any) -> Any:
            yield made(s.shape, ctx.get_current_key(), (self.total.value() or 0) + n_of(change(value, s.a)))

    connected = stream.connect(stream.filter(lambda r: n_of(r) % 2)).key_by(key_of, key_of)
    return connected.process(Shared(), type_of(s.shape, root))


def windowed(windows: Any, how: int, s: Step, root: Any) -> Any:
    """The results of windows, computed in one of four ways."""

    class Total(root.AggregateFunction):  # type: ignore[name-defined,misc]
        def create_accumulator(self) -> Any:
            return ["", 0]

        def add(self, value: Any, accumulator: Any) -> Any:
            accumulator[0] = key_of(value)
            accumulator[1] += n_of(value)
            return accumulator

        def get_result(self, accumulator: Any) -> Any:
            return accumulator

        def merge(self, acc_a: Any, acc_b: Any) -> Any:
            return [acc_a[0] or acc_b[0], acc_a[1] + acc_b[1]]

    class Apply(root.WindowFunction):  # type: ignore[name-defined,misc]
        def apply(self, key: Any, window: Any, inputs: Any) -> Any:
            return [made(s.shape, key, sum(map(n_of, inputs)) + window.max_timestamp() % 7)]

    class Prefixes(root.ProcessWindowFunction):  # type: ignore[name-defined,misc]
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            record = made(s.shape, key, 0)
            for element in elements:
                record = change(record, n_of(element))
                yield record

    match how:
        case 0:
            return map_to_new(windows.reduce(lambda x, y: change(x, n_of(y))), s, root)
        case 1:
            return map_to_new(windows.aggregate(Total()), s, root)
        case 2:
            return windows.apply(Apply(), type_of(s.shape, root))
        case _:
            return windows.process(Prefixes(), type_of(s.shape, root))


for how in range(4):

    def tumbling_count(stream: Any, s: Step, root: Any, how: int = how) -> Any:
        return windowed(stream.key_by(key_of).count_window(s.a + 1), how, s, root)

    def sliding_count(stream: Any, s: Step, root: Any, how: int = how) -> Any:
        return windowed(stream.key_by(key_of).count_window(3 + s.a % 2, 1 + s.a % 5), how, s, root)

    def timed(stream: Any, s: Step, root: Any, how: int = how) -> Any:
        strategy = root.WatermarkStrategy.for_bounded_out_of_orderness(2000)
        stamped = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda r, _: n_of(r)))
        assigner = (
            root.TumblingEventTimeWindows.of(20),
            root.SlidingEventTimeWindows.of(30, 10),
            root.EventTimeSessionWindows.with_gap(15),
        )[s.a % 3]
        return windowed(stamped.key_by(key_of).window(assigner), how, s, root)

    for build in (tumbling_count, sliding_count, timed):
        build.__name__ += ("_reduce", "_aggregate", "_apply", "_process")[how]
        step(ordered=not build.__name__.startswith("timed"))(build)


# --- pipelines --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """A pipeline, and how it runs."""

    shape: str  # of the source
    numbers: tuple[int, ...]
    steps: tuple[Step, ...]
    keyed: bool  # whether a keyed stream is collected
    parallelism: int
    batch: int  # records that are read at once
    seed: int | None  # of the order in which subtasks run

    def results(self, root: Any, batch: int | None = None) -> list[Any]:
        env = root.StreamExecutionEnvironment.local(slice_records=batch or self.batch, seed=self.seed)
        env.set_parallelism(self.parallelism)
        records = [made(self.shape, "abc"[i % 3], n) for i, n in enumerate(self.numbers)]
        stream = env.from_collection(records + records[:1], type_of(self.shape, root))
        for one in self.steps:
            stream = STEPS[one.name](stream, one, root)
        if self.keyed:
            stream = stream.key_by(key_of)
        found = list(stream.execute_and_collect())
        if self.keyed and root is FLINK:
            assert all(key_of(row[1]) == row[0] for row in found)
            found = [row[1] for row in found]
        return list(map(plain, found))


one_step = st.builds(Step, st.sampled_from(sorted(STEPS)), st.sampled_from(SHAPES), st.integers(0, 5))
programs = st.builds(
    Program,
    st.sampled_from(SHAPES),
    st.lists(st.integers(0, 99), min_size=1, max_size=25).map(tuple),
    st.lists(one_step, min_size=1, max_size=4).map(tuple),
    st.booleans(),
    st.integers(1, 2),
    st.sampled_from([1, 2, 5, 100]),
    st.sampled_from([None, 1, 2]),
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs)
def test_both_roots_give_the_same_results(program):
    found = program.results(NATIVE)
    assert found == program.results(FLINK)
    if program.parallelism == 1 and {one.name for one in program.steps} <= ORDERED:
        assert found == program.results(NATIVE, 1) == program.results(NATIVE, 100)
