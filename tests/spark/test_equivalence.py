"""The same program gives the same records on Spark, at any parallelism, as in the local runtime."""

import pytest
from spark_kit import multiset

from headrace import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
)

LINES = ["to be or not to be", "that is the question", "to die to sleep", "no more and by a sleep to say"] * 5
WORD = "word string, n bigint"
PAIR = "a bigint, b string"
ODD = OutputTag("odd", "bigint")
UNTYPED_ODD = OutputTag("odd")
PARALLELISM = [1, 3]  # one subtask is a case of its own; three are many, and the batches do not share evenly


class Where(MapFunction):
    """The subtask that saw a record."""

    def open(self, runtime_context):
        self.index = runtime_context.get_index_of_this_subtask()

    def map(self, value):
        return (self.index, value)


class SplitOdd(ProcessFunction):
    def __init__(self, tag):
        self.tag = tag

    def process_element(self, value, ctx):
        if value % 2:
            yield self.tag, value * 10
        else:
            yield value


class Tagged(CoMapFunction):
    def map1(self, value):
        return f"left {value}"

    def map2(self, value):
        return f"right {value}"


class TwoOfEach(CoFlatMapFunction):
    def flat_map1(self, value):
        return [("l", value), ("l", value)]

    def flat_map2(self, value):
        yield ("r", value)


class Both(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield (1, str(value))

    def process_element2(self, value, ctx):
        yield (2, str(value))


def word_count_typed(env):
    lines = env.from_collection(LINES, type_info="string")
    return lines.flat_map(lambda s: [(w, 1) for w in s.split()], output_type=WORD).key_by("word").sum("n")


def word_count_untyped(env):
    lines = env.from_collection(LINES)
    words = lines.flat_map(lambda s: [(w, 1) for w in s.split()])
    return words.key_by(lambda w: w[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))


def word_count_with_a_dict(env):
    class Count(MapFunction):
        def open(self, runtime_context):
            self.counts = {}

        def map(self, word):
            self.counts[word] = self.counts.get(word, 0) + 1
            return (word, self.counts[word])

    return env.from_collection(LINES).flat_map(str.split).key_by(lambda w: w).map(Count())


def union_connect_side_output(env):
    numbers = env.from_sequence(1, 200)
    more = env.from_collection(list(range(1000, 1050)), type_info="bigint")
    split = numbers.union(more).process(SplitOdd(ODD), output_type="bigint")
    return split.connect(split.get_side_output(ODD)).map(Tagged(), output_type="string")


def union_connect_side_output_untyped(env):
    numbers = env.from_collection(list(range(200)))
    more = env.from_collection(list(range(1000, 1050)))
    split = numbers.union(more).rebalance().process(SplitOdd(UNTYPED_ODD))
    return split.connect(split.get_side_output(UNTYPED_ODD)).flat_map(TwoOfEach())


def diamond_by_union(env):
    numbers = env.from_sequence(1, 300)
    left = numbers.key_by(lambda x: x).map(lambda x: x * 2, output_type="bigint")
    right = numbers.rebalance().map(lambda x: -x, output_type="bigint")
    return left.union(right).key_by(lambda x: x % 7).map(lambda x: x + 1, output_type="bigint")


def diamond_by_connect(env):
    numbers = env.from_sequence(1, 300).map(lambda x: (x, "x" * (x % 3)), output_type=PAIR)
    left = numbers.key_by("a").map(lambda r: (r.a * 2, r.b), output_type=PAIR)
    right = numbers.rebalance().map(lambda r: (-r.a, r.b), output_type=PAIR)
    return left.key_by("b").connect(right.key_by("b")).process(Both(), output_type="side bigint, what string")


def skip_level(env):
    """The source feeds the last operator directly, and through three hops: two relays on the way."""
    numbers = env.from_sequence(1, 300)
    far = numbers.map(lambda x: x + 1, output_type="bigint")
    for step in range(3):
        far = far.key_by(lambda x, step=step: x + step).map(lambda x: x + 1, output_type="bigint")
    return far.connect(numbers.rebalance()).map(Tagged(), output_type="string")


def skip_level_untyped(env):
    numbers = env.from_collection([f"n{i}" for i in range(300)])
    far = numbers.rebalance().map(str.upper).key_by(lambda s: s).map(lambda s: s + "!").rebalance().map(str.title)
    return far.union(numbers.broadcast()).key_by(len).map(lambda s: s)


def two_sources_of_different_depth(env):
    early = env.from_sequence(1, 50).key_by(lambda x: x).map(lambda x: x, output_type="bigint")
    late = env.from_collection([5, 6, 7], type_info="bigint")
    return early.rebalance().map(lambda x: x, output_type="bigint").union(late).key_by(lambda x: x).map(lambda x: x)


PROGRAMS = [
    word_count_typed,
    word_count_untyped,
    word_count_with_a_dict,
    union_connect_side_output,
    union_connect_side_output_untyped,
    diamond_by_union,
    diamond_by_connect,
    skip_level,
    skip_level_untyped,
    two_sources_of_different_depth,
]


def compare(make_env, parallelism, program):
    local = StreamExecutionEnvironment.local().set_parallelism(parallelism)
    expected = multiset(program(local).execute_and_collect())
    got = multiset(program(make_env(parallelism)).execute_and_collect())
    assert expected
    assert got == expected


@pytest.mark.parametrize("parallelism", PARALLELISM)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program(make_env, program, parallelism):
    compare(make_env, parallelism, program)


def test_skip_level_runs_through_relays(make_env):
    env = make_env(2)
    skip_level(env).print()
    assert "relay to" in env.explain()


PARTITIONERS = {
    # Which subtask gets a record is the same everywhere ...
    "forward": (lambda s: s.forward(), True),
    "global_": (lambda s: s.global_(), True),
    "broadcast": (lambda s: s.broadcast(), True),
    "key_by": (lambda s: s.key_by(lambda x: x), True),
    "partition_custom": (lambda s: s.partition_custom(lambda k, n: k * 7 % n, lambda x: x), True),
    # ... or depends on how batches were cut.
    "rebalance": (lambda s: s.rebalance(), False),
    "rescale": (lambda s: s.rescale(), False),
    "shuffle": (lambda s: s.shuffle(), False),
}


@pytest.mark.parametrize("parallelism", PARALLELISM)
@pytest.mark.parametrize("name", PARTITIONERS)
def test_partitioner(make_env, name, parallelism):
    spread, exact = PARTITIONERS[name]

    def program(env):
        typed = env.from_sequence(1, 500).map(lambda x: x, output_type="bigint")
        untyped = env.from_sequence(1, 500).map(lambda x: x)
        seen = [spread(numbers).map(Where()).start_new_chain() for numbers in (typed, untyped)]
        both = seen[0].map(lambda pair: ("typed", *pair)).union(seen[1].map(lambda pair: ("untyped", *pair)))
        return both if exact else both.map(lambda found: (found[0], found[2]))

    compare(make_env, parallelism, program)


def test_rebalance_from_one_to_many_and_back(make_env):
    def program(env):
        wide = env.from_sequence(1, 1000).set_parallelism(1).rebalance().map(lambda x: x + 1).set_parallelism(3)
        return wide.rescale().map(lambda x: x).set_parallelism(6).rescale().map(lambda x: x).set_parallelism(2)

    compare(make_env, 2, program)
