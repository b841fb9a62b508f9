"""Levels: every vertex below its inputs, sources just above their first consumer, relays where an edge skips one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import StreamExecutionEnvironment
from headrace.graph.levels import Slot, lay_out


def plan(build, parallelism=1):
    env = StreamExecutionEnvironment.local()
    env.set_parallelism(parallelism)
    build(env)
    return env._job_plan()


def levels(plan):
    """Vertex name -> level."""
    return {plan.graph.vertices[v].head.name: level for v, level in plan.layout.level_of.items()}


def shape(plan):
    """For each level the vertices and relays with their widths."""
    found = []
    for slots in plan.layout.levels:
        counts: dict[str, int] = {}
        for slot in slots:
            name = ("relay to " if slot.relay else "") + plan.graph.vertices[slot.vertex].head.name
            counts[name] = counts.get(name, 0) + 1
        found.append(counts)
    return found


def step(stream, name, parallelism=1):
    return stream.rebalance().map(lambda n: n).name(name).set_parallelism(parallelism)


def test_a_line():
    def build(env):
        step(step(env.from_collection([1]), "a", 2), "b", 3).print()

    assert shape(plan(build)) == [{"Collection Source": 1}, {"a": 2}, {"b": 3}, {"Print": 1}]
    assert plan(build).layout.slots == 7


def test_one_chain_is_one_level():
    assert shape(plan(lambda env: env.from_collection([1]).map(str).print())) == [{"Collection Source": 1}]


def test_sources_sit_just_before_their_first_consumer():
    """So the edge from the late source skips nothing, and its slots are not held by relays."""

    def build(env):
        early, late = env.from_collection([1]).name("early"), env.from_collection([1]).name("late")
        deep = step(step(early, "a"), "b")
        deep.union(late).map(lambda n: n).name("join").print()

    assert levels(plan(build)) == {"early": 0, "a": 1, "b": 2, "late": 2, "join": 3}
    assert not any(slot.relay for level in plan(build).layout.levels for slot in level)


def test_a_skip_level_edge_runs_through_relays():
    def build(env):
        source = env.from_collection([1]).name("source")
        deep = step(step(source, "a", 2), "b", 2)
        deep.rebalance().union(source.rebalance()).map(lambda n: n).name("join").set_parallelism(3).print()

    found = plan(build)
    assert shape(found) == [
        {"source": 1},
        {"a": 2, "relay to join": 3},
        {"b": 2, "relay to join": 3},
        {"join": 3},
        {"Print": 1},
    ]
    assert found.layout.slots == 1 + 5 + 5 + 3 + 1
    join = next(v.id for v in found.graph.vertices if v.head.name == "join")
    assert found.layout.index(1, join, 0) == 2  # the first relay of level 1, behind the two subtasks of a
    assert found.layout.index(3, join, 2) == 2
    assert found.relays == {(1, join): 2, (2, join): 0}
    assert "relay to [3]  x3" in _explain(build)


def _explain(build):
    env = StreamExecutionEnvironment.local()
    build(env)
    return env.explain()


def test_two_edges_to_one_target_share_their_relays():
    def build(env):
        source = env.from_collection([1]).name("source")
        deep = step(step(source, "a"), "b")
        deep.rebalance().union(source.rebalance(), source.rebalance()).map(lambda n: n).name("join").print()

    assert shape(plan(build))[1] == {"a": 1, "relay to join": 1}


def test_a_diamond_needs_no_relays():
    def build(env):
        source = env.from_collection([1]).name("source")
        left, right = step(source, "left", 2), step(source, "right", 2)
        left.rebalance().union(right.rebalance()).map(lambda n: n).name("join").print()

    found = plan(build)
    assert shape(found) == [{"source": 1}, {"left": 2, "right": 2}, {"join": 1}]


def test_two_programs_side_by_side():
    def build(env):
        step(env.from_collection([1]).name("s1"), "a").print()
        env.from_collection([2]).name("s2").print()

    assert levels(plan(build)) == {"s1": 0, "a": 1, "s2": 0}


def test_an_unused_source_is_at_the_top():
    def build(env):
        step(step(env.from_collection([1]).name("s1"), "a"), "b").print()
        env.from_collection([2]).name("alone")

    assert levels(plan(build))["alone"] == 0


@st.composite
def _programs(draw):
    """A random graph: each node takes one or two of the nodes before it."""
    nodes = draw(
        st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.booleans(), st.integers(1, 3)), max_size=8)
    )
    sources = draw(st.integers(1, 3))

    def build(env):
        streams = [env.from_datagen(str, 5).name(f"s{i}") for i in range(sources)]
        for n, (first, second, both, parallelism) in enumerate(nodes):
            stream = streams[first % len(streams)].rebalance()
            if both:
                stream = stream.union(streams[second % len(streams)].rebalance())
            streams.append(stream.map(lambda v: v).name(f"n{n}").set_parallelism(parallelism))

    return build


@given(_programs())
@settings(max_examples=60)
def test_any_graph_can_be_laid_out(build):
    found = plan(build)
    layout, graph = found.layout, found.graph
    assert lay_out(graph) == layout
    for edge in graph.edges:
        source, target = layout.level_of[edge.source], layout.level_of[edge.target]
        assert source < target
        for level in range(source + 1, target):  # a relay for every reader, on every level in between
            readers = graph.vertices[edge.target].parallelism
            assert all(Slot(edge.target, r, relay=True) in layout.levels[level] for r in range(readers))
    placed = [slot for level in layout.levels for slot in level if not slot.relay]
    assert sorted(placed, key=lambda s: (s.vertex, s.subtask)) == [
        Slot(v.id, i) for v in graph.vertices for i in range(v.parallelism)
    ]
    assert layout.slots == sum(map(len, layout.levels))
    assert all(layout.levels)
    for vertex in graph.vertices:
        consumers = [layout.level_of[e.target] for e in graph.outputs(vertex.id)]
        if vertex.is_source and consumers:
            assert layout.level_of[vertex.id] == min(consumers) - 1
