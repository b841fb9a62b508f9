"""From the program to the job graph: chains, edges, stable ids, parallelism."""

from __future__ import annotations

import json

import pytest

from headrace import KeyedProcessFunction, OutputTag, ProcessFunction, StreamExecutionEnvironment
from headrace.errors import GraphError, InvalidArgument
from headrace.records.key_groups import murmur3_128


class Both(ProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Keyed(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def environment(parallelism=1, **conf):
    env = StreamExecutionEnvironment.local()
    env.set_parallelism(parallelism)
    for key, value in conf.items():
        env.get_configuration().set(key.replace("__", "-").replace("_", "."), value)
    return env


def graph_of(env):
    return env._job_plan().graph


def chains(env):
    return [[op.name for op in vertex.operators] for vertex in graph_of(env).vertices]


def edges(env):
    graph = graph_of(env)
    return [(graph.vertices[e.source].name, e.partitioning.kind, graph.vertices[e.target].name) for e in graph.edges]


def operator_ids(env):
    return {op.name: op.id for vertex in graph_of(env).vertices for op in vertex.operators}


# --- chaining -------------------------------------------------------------------------------------------------------


def test_equal_parallelism_is_chained():
    env = environment()
    env.from_collection([1]).map(str).filter(bool).name("F").print()
    assert chains(env) == [["Collection Source", "Map", "F", "Print"]]


def test_another_parallelism_is_rebalanced():
    env = environment()
    env.from_collection([1]).map(str).set_parallelism(2).print()
    assert chains(env) == [["Collection Source"], ["Map"], ["Print"]]
    assert [kind for _, kind, _ in edges(env)] == ["rebalance", "rebalance"]


@pytest.mark.parametrize(
    ("spread", "kind"),
    [
        (lambda s: s.rebalance(), "rebalance"),
        (lambda s: s.rescale(), "rescale"),
        (lambda s: s.shuffle(), "shuffle"),
        (lambda s: s.global_(), "global"),
        (lambda s: s.broadcast(), "broadcast"),
        (lambda s: s.key_by(lambda n: n), "hash"),
        (lambda s: s.partition_custom(lambda key, n: 0, lambda n: n), "custom"),
    ],
)
def test_a_partitioning_breaks_the_chain(spread, kind):
    env = environment()
    spread(env.from_collection([1])).map(str).print()
    assert chains(env) == [["Collection Source"], ["Map", "Print"]]
    assert [k for _, k, _ in edges(env)] == [kind]


def test_forward_keeps_the_chain():
    env = environment()
    env.from_collection([1]).forward().map(str).print()
    assert chains(env) == [["Collection Source", "Map", "Print"]]


def test_start_new_chain_breaks_before_the_operator():
    env = environment()
    env.from_collection([1]).map(str).start_new_chain().filter(bool).print()
    assert chains(env) == [["Collection Source"], ["Map", "Filter", "Print"]]
    assert [k for _, k, _ in edges(env)] == ["forward"]


def test_disable_chaining_breaks_on_both_sides():
    env = environment()
    env.from_collection([1]).map(str).disable_chaining().filter(bool).print()
    assert chains(env) == [["Collection Source"], ["Map"], ["Filter", "Print"]]


def test_the_environment_can_disable_chaining():
    env = environment().disable_operator_chaining()
    env.from_collection([1]).map(str).print()
    assert chains(env) == [["Collection Source"], ["Map"], ["Print"]]


def test_a_fan_out_is_chained_whole():
    env = environment()
    source = env.from_collection([1])
    source.map(str).name("left").print()
    source.map(int).name("right").print()
    assert chains(env) == [["Collection Source", "left", "Print", "right", "Print"]]
    (vertex,) = graph_of(env).vertices
    assert [output.operator for output in vertex.head.outputs] == [1, 3]


def test_union_is_not_chained_and_has_an_edge_for_each_input():
    env = environment()
    first, second = env.from_collection([1]).name("a"), env.from_collection([2]).name("b")
    first.union(second, first).map(str).print()
    assert chains(env) == [["a"], ["b"], ["Map", "Print"]]
    assert edges(env) == [
        ("a", "forward", "Map -> Print"),
        ("a", "forward", "Map -> Print"),
        ("b", "forward", "Map -> Print"),
    ]


def test_two_inputs_are_told_apart():
    class Co(ProcessFunction):
        def process_element1(self, value, ctx):
            yield value

        process_element = process_element2 = process_element1

    env = environment()
    first, second = env.from_collection([1]).name("a"), env.from_collection([2]).name("b")
    second.connect(first).process(Co()).print()
    inputs = {graph_of(env).vertices[e.source].name: e.input for e in graph_of(env).edges}
    assert inputs == {"b": 0, "a": 1}


def test_side_outputs_are_edges_with_a_tag_and_its_type():
    env = environment()
    late = OutputTag("late", "bigint")
    main = env.from_collection([1]).process(Both())
    main.rebalance().print()
    main.get_side_output(late).rebalance().print()
    assert [(e.tag, str(e.type)) for e in graph_of(env).edges] == [(None, "pickled"), ("late", "bigint")]


def test_a_side_output_may_be_chained():
    env = environment()
    main = env.from_collection([1]).process(Both())
    main.get_side_output(OutputTag("late")).print()
    (vertex,) = graph_of(env).vertices
    assert [(o.tag, o.operator) for o in vertex.operators[1].outputs] == [("late", 2)]


def test_vertices_are_in_topological_order():
    env = environment(2)
    left = env.from_sequence(1, 2).map(str).rebalance().map(str)
    right = env.from_sequence(1, 2).map(str)
    left.union(right).rebalance().map(str).print()
    graph = graph_of(env)
    assert all(edge.source < edge.target for edge in graph.edges)
    assert [v.id for v in graph.vertices] == list(range(len(graph.vertices)))


# --- ids ------------------------------------------------------------------------------------------------------------


def word_count(change=lambda step, stream: stream):
    env = environment()
    stream = change("source", env.from_collection(["a b"]))
    stream = change("map", stream.flat_map(str.split))
    stream = change("count", stream.key_by(lambda w: w).process(Keyed()))
    change("sink", stream.print())
    return list(operator_ids(env).values())


def test_ids_are_32_hex_digits_and_distinct():
    ids = word_count()
    assert all(len(id) == 32 and int(id, 16) >= 0 for id in ids)
    assert len(set(ids)) == len(ids) == 4


def test_ids_stay_the_same_from_run_to_run():
    assert word_count() == word_count()


@pytest.mark.parametrize(
    "change",
    [
        lambda step, stream: stream.name(f"my {step}"),
        lambda step, stream: stream.set_parallelism(3) if step in ("map", "count") else stream,
        lambda step, stream: stream.set_max_parallelism(500),
        lambda step, stream: stream.set_description("what it does"),
        lambda step, stream: stream.disable_chaining(),
        lambda step, stream: stream.set_buffer_timeout(7),
    ],
)
def test_names_parallelism_and_chaining_do_not_change_ids(change):
    assert word_count(change) == word_count()


def test_another_structure_changes_the_ids_behind_it():
    before = word_count()
    after = word_count(lambda step, stream: stream.filter(bool) if step == "map" else stream)
    assert after[:2] == before[:2]
    assert not set(after[2:]) & set(before[2:])


def test_a_uid_fixes_the_id():
    plain = word_count()
    ids = word_count(lambda step, stream: stream.uid("the count") if step == "count" else stream)
    assert ids[2] == murmur3_128(b"the count").hex() != plain[2]
    moved = word_count(
        lambda step, s: s.uid("the count") if step == "count" else s.filter(bool) if step == "map" else s
    )
    assert ids[2] in moved


def test_a_uid_twice():
    env = environment()
    env.from_collection([1]).uid("x").map(str).name("second").uid("x").print()
    with pytest.raises(
        GraphError, match=r"uid 'x' is used twice: by 'Collection Source' \(.*test_job_graph.py:\d+\) and by 'second'"
    ):
        env._job_plan()


def test_uids_may_be_demanded():
    env = environment(pipeline_auto__generate__uids=False)
    env.from_collection([1]).uid("s").print().uid("p")
    env._job_plan()
    env = environment(pipeline_auto__generate__uids=False)
    env.from_collection([1]).uid("s").print().name("no id")
    with pytest.raises(GraphError, match=r"'no id' .* has no uid and pipeline.auto-generate-uids is false"):
        env._job_plan()


# --- parallelism ----------------------------------------------------------------------------------------------------


def test_the_default_parallelism_counts_when_the_job_is_built():
    env = environment()
    env.from_sequence(1, 2).map(str).print()
    env.set_parallelism(4)
    assert {v.parallelism for v in graph_of(env).vertices} == {4}


def test_looking_at_the_plan_changes_nothing():
    env = environment()
    env.from_sequence(1, 2).map(str).print()
    env.explain()
    env.get_execution_plan()
    env.set_parallelism(4)
    assert {v.parallelism for v in graph_of(env).vertices} == {4}


def test_collections_run_in_one_subtask():
    env = environment(4)
    env.from_collection([1]).print()
    assert [v.parallelism for v in graph_of(env).vertices] == [1, 4]
    env.from_collection([1]).set_parallelism(2).name("c").print()
    with pytest.raises(GraphError, match=r"'c' \(.*\) always runs with parallelism 1, but was given 2"):
        env._job_plan()


def test_forward_needs_equal_parallelism():
    env = environment()
    env.from_sequence(1, 2).set_parallelism(2).name("from").forward().map(str).set_parallelism(3).name("to").print()
    with pytest.raises(GraphError) as caught:
        env._job_plan()
    assert "forward() from 'from' (" in str(caught.value)
    assert "with parallelism 2 to 'to' (" in str(caught.value)
    assert "use rebalance() or rescale()" in str(caught.value)


def test_max_parallelism_comes_from_the_operator_the_job_or_a_rule():
    env = environment(3)
    env.from_sequence(1, 2).key_by(lambda n: n).process(Keyed()).set_max_parallelism(7).rebalance().map(str).print()
    assert [(v.max_parallelism, v.max_parallelism_set) for v in graph_of(env).vertices] == [
        (128, False),
        (7, True),
        (128, False),
    ]
    env.set_max_parallelism(64)
    assert [(v.max_parallelism, v.max_parallelism_set) for v in graph_of(env).vertices] == [
        (64, True),
        (7, True),
        (64, True),
    ]


@pytest.mark.parametrize(("parallelism", "derived"), [(1, 128), (85, 128), (86, 256), (171, 256)])
def test_the_derived_max_parallelism(parallelism, derived):
    env = environment(parallelism)
    env.from_sequence(1, 2).print()
    assert graph_of(env).vertices[0].max_parallelism == derived


def test_parallelism_above_max_parallelism():
    env = environment(4)
    env.from_sequence(1, 2).name("numbers").set_max_parallelism(2).print()
    with pytest.raises(
        GraphError, match=r"'numbers' .*parallelism 4.*max parallelism 2|max parallelism 2.*parallelism 4"
    ):
        env._job_plan()


def test_max_parallelism_above_the_limit():
    env = environment()
    env.from_sequence(1, 2).name("numbers").set_max_parallelism(40000).print()
    with pytest.raises(GraphError, match="32768"):
        env._job_plan()


def test_chained_operators_with_different_max_parallelism():
    env = environment()
    env.from_collection([1]).set_max_parallelism(5).map(str).set_max_parallelism(6).print()
    with pytest.raises(GraphError, match=r"chained operators have different max parallelism .* start_new_chain\(\)"):
        env._job_plan()


def test_an_empty_program():
    with pytest.raises(GraphError, match="the program is empty: add a source"):
        environment().execute()


# --- several programs of one environment ----------------------------------------------------------------------------


def test_a_stream_lives_on_after_execute():
    """PyFlink's own examples run one stream in several jobs."""
    env = environment()
    source = env.from_collection([1, 2, 3])
    doubled = source.map(lambda n: n * 2)
    assert list(doubled.execute_and_collect()) == [2, 4, 6]
    assert list(source.filter(lambda n: n > 1).execute_and_collect()) == [2, 3]
    assert list(doubled.map(str).execute_and_collect()) == ["2", "4", "6"]


def test_the_next_job_has_only_what_it_needs():
    env = environment()
    source = env.from_collection([1])
    source.map(str).name("old").print()
    env.execute()
    source.map(str).name("new").print()
    assert chains(env) == [["Collection Source", "new", "Print"]]
    env.execute()
    with pytest.raises(GraphError, match="the program is empty"):
        env.execute()


def test_the_same_program_twice_has_the_same_ids():
    env = environment()
    source = env.from_collection([1])
    source.map(str).print()
    first = operator_ids(env)
    env.execute()
    source.map(str).print()
    assert operator_ids(env) == first


# --- the plan -------------------------------------------------------------------------------------------------------


def test_the_plan_as_json():
    env = environment(2)
    env.from_sequence(1, 9).key_by(lambda n: n % 3).process(Keyed(), "bigint").uid("keyed").name("K").print()
    plan = json.loads(env.get_execution_plan())
    assert plan["slots"] == 4
    assert [(v["id"], v["level"], v["parallelism"], v["max_parallelism"]) for v in plan["vertices"]] == [
        (0, 0, 2, 128),
        (1, 1, 2, 128),
    ]
    keyed = plan["vertices"][1]["operators"][0]
    assert (keyed["name"], keyed["kind"], keyed["uid"], keyed["type"]) == ("K", "keyed_process", "keyed", "bigint")
    assert "test_job_graph.py:" in keyed["defined_at"]
    assert plan["edges"] == [
        {"id": 0, "source": 0, "target": 1, "input": 0, "ship": "hash", "type": "bigint", "side_output": None}
    ]


def test_the_plan_as_text():
    env = environment(2)
    env.from_sequence(1, 9).rebalance().map(str).name("M").print()
    assert env.explain() == (
        "Headrace job: 2 vertices, 2 levels, 4 slots\n"
        "level 0 (2 slots)\n"
        "  [0] Sequence Source  x2\n"
        "        --rebalance--> [1] M\n"
        "level 1 (2 slots)\n"
        "  [1] M -> Print  x2"
    )


# ---- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["name", "uid"])
def test_a_name_that_cannot_be_stored_is_refused(what):
    stream = StreamExecutionEnvironment.local().from_elements(1).map(str)
    with pytest.raises(
        InvalidArgument, match=rf"{what} 'bad \\udcff' cannot be stored: its character 5 is a lone surrogate"
    ):
        getattr(stream, what)("bad \udcff")


def test_so_is_the_name_of_a_job():
    env = StreamExecutionEnvironment.local()
    env.from_elements(1).print()
    with pytest.raises(InvalidArgument, match=r"the name of the job 'bad \\udcff' cannot be stored"):
        env.execute("bad \udcff")
