"""The same program under both roots of imports: equal results, in the forms of the root (docs/dialects.md)."""

from __future__ import annotations

import pytest

import headrace
from headrace import Types, WindowFunction
from headrace.api.dialect import NATIVE
from headrace.pyflink.common import Row, job_client
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.stream_execution_environment import FLINK

ROOTS = {"native": headrace.StreamExecutionEnvironment, "pyflink": StreamExecutionEnvironment}
PAIR = Types.TUPLE([Types.STRING(), Types.INT()])


@pytest.fixture(params=ROOTS)
def env(request):
    return ROOTS[request.param].local()


def numbers(env):
    return env.from_collection([("a", n) for n in range(1, 6)], type_info=PAIR).key_by(lambda record: record[0])


def collected(stream):
    return list(stream.execute_and_collect())


def test_sliding_windows_by_count_are_full(env):
    class Sum(WindowFunction):
        def apply(self, key, window, inputs):
            return [sum(record[1] for record in inputs)]

    assert collected(numbers(env).count_window(3, 2).apply(Sum(), Types.INT())) == [6, 12]


def test_windows_by_count_can_be_reduced(env):
    total = lambda one, other: (one[0], one[1] + other[1])  # noqa: E731
    assert collected(numbers(env).count_window(3, 2).reduce(total)) == [("a", 6), ("a", 12)]
    assert collected(numbers(env).count_window(2).reduce(total)) == [("a", 3), ("a", 7)]


def test_a_record_that_is_changed_after_it_was_emitted(env):
    def twice(number):
        record = [number, 0]
        yield record
        record[1] = 99

    assert collected(env.from_collection([1, 2]).flat_map(twice).map(list)) == [[1, 0], [2, 0]]


def test_a_collected_keyed_stream_gives_its_records_in_the_form_of_the_root():
    found = {name: collected(numbers(root.local())) for name, root in ROOTS.items()}
    assert found["native"] == [("a", n) for n in range(1, 6)]
    assert found["pyflink"] == [Row(f0="a", f1=record) for record in found["native"]]


def test_rows_have_one_name_and_one_text(env):
    rows = env.from_collection([("a", 1)], type_info="word string, n int")
    assert collected(rows.map(lambda row: (type(row).__name__, str(row), row.word, row["n"]))) == [
        ("Row", "Row(word='a', n=1)", "a", 1)
    ]


def test_the_forms_of_the_roots():
    env, flink = ROOTS["native"].local(), ROOTS["pyflink"].local()
    assert (env.dialect, flink.dialect) == (NATIVE, FLINK)
    for one in (env, flink):
        one.from_collection([1]).print()
    assert type(env.execute_async()) is headrace.JobClient
    assert type(flink.execute_async()) is job_client.JobClient
    assert (NATIVE.text(("a", None)), FLINK.text(("a", None))) == ("('a', None)", "(a,null)")


def test_elements_that_do_not_fit_are_refused_or_converted():
    with pytest.raises(headrace.InvalidArgument):
        ROOTS["native"].local().from_collection([7], Types.STRING())
    assert collected(ROOTS["pyflink"].local().from_collection([7], Types.STRING())) == ["7"]
