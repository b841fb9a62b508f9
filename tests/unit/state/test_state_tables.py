from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import IllegalState
from headrace.records.key_groups import KeyGroupRange
from headrace.state.hashmap.tables import Layer, StateTable, view


def table_of(entries, groups=4):
    table = StateTable(KeyGroupRange(0, groups - 1), groups)
    for key, stored in entries.items():
        table.tables[key % groups][key] = stored
    return table


def content(table):
    tops = [Layer(top, below) for top, below in zip(table.tables, table.below, strict=True)]
    return {address: stored for one in tops for address, stored in view(one)}


def is_plain(table):
    return [below is None for below in table.below]


def test_freezing_copies_nothing():
    table = table_of({key: key for key in range(100)})
    before = list(table.tables)
    frozen, _ = table.freeze()
    assert all(a is b for a, b in zip(frozen, before, strict=True))
    assert not any(is_plain(table))


def test_a_group_that_is_not_ours_refuses_everything():
    table = StateTable(KeyGroupRange(2, 3), 8)
    for group in (0, 1, 4, 7):
        for use in (lambda g=group: table.tables[g]["a"], lambda g=group: table.tables[g].__setitem__("a", 1)):
            with pytest.raises(IllegalState, match="another subtask owns"):
                use()
    table.freeze()
    with pytest.raises(IllegalState):
        table.tables[0]["a"] = 1


def test_merging_is_bounded_and_never_shows_a_difference():
    table = table_of(dict.fromkeys(range(1000), "old"))
    _, cursor = table.freeze()
    model = dict.fromkeys(range(1000), "old")
    for key in range(0, 1200, 2):
        table.tables[key % 4][key] = "new"
        model[key] = "new"
    for key in range(0, 1000, 10):
        table.remove(key % 4, key)
        model.pop(key, None)
    assert table.merge(10**6) > 0  # a snapshot holds every group
    assert not any(is_plain(table))
    table.release(cursor)
    steps = 0
    while table.merge(7) == 0:
        assert content(table) == model
        assert sum(1 for _ in table.items()) == len(model)
        steps += 1
    assert steps > 50
    assert not table.layered
    assert all(is_plain(table))
    assert content(table) == model


def test_groups_are_merged_as_the_snapshot_leaves_them():
    table = table_of(dict.fromkeys(range(40), 0))
    _, cursor = table.freeze()
    for key in range(40):
        table.tables[key % 4][key] = 1
    cursor.at = 2
    table.merge(1000)
    assert is_plain(table) == [True, True, False, False]


def test_tracking_keeps_the_top_apart():
    table = table_of(dict.fromkeys(range(40), 0))
    table.track()
    table.tables[1][1] = 5
    frozen, cursor = table.freeze()
    table.tables[1][5] = 6
    table.release(cursor)
    while table.merge(3) == 0:
        pass
    assert all(below is not None and below.below is None for below in table.below)
    assert frozen.changes()[1] == {1: 5}  # what changed, still there for the next increment
    assert (table.get(1, 1), table.get(1, 5)) == (5, 6)
    table.stop_tracking()
    table.merge(1000)
    assert all(is_plain(table))


def test_a_removed_entry_is_marked_only_where_it_would_show():
    table = table_of({0: "x"})
    table.freeze()
    table.remove(0, 0)
    assert table.tables[0] == {0: None}
    table.put(0, 4, "y")
    table.remove(0, 4)
    assert table.tables[0] == {0: None}
    assert table.get(0, 0) is None
    assert sum(1 for _ in table.items()) == 0


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 12), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.integers(0, 12)),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("release"), st.integers(0, 3)),
        st.tuples(st.just("advance"), st.integers(0, 3), st.integers(0, 4)),
        st.tuples(st.just("merge"), st.integers(1, 5)),
    ),
    max_size=60,
)


@given(OPERATIONS, st.booleans())
def test_frozen_tables_never_change(operations, tracking):
    table, model, held = table_of({}), {}, []
    if tracking:
        table.track()
    for operation, *arguments in operations:
        if operation == "put":
            key, stored = arguments
            table.tables[key % 4][key] = model[key] = stored
        elif operation == "remove":
            table.remove(arguments[0] % 4, arguments[0])
            model.pop(arguments[0], None)
        elif operation == "freeze":
            held.append((*table.freeze(), dict(model)))
        elif operation == "release" and held:
            table.release(held.pop(arguments[0] % len(held))[1])
        elif operation == "advance" and held:
            cursor = held[arguments[0] % len(held)][1]
            cursor.at = max(cursor.at, arguments[1])
        elif operation == "merge":
            table.merge(arguments[0])
        assert content(table) == model
        assert sum(1 for _ in table.items()) == len(model)
        for frozen, cursor, then in held:
            seen = {a: s for group in range(cursor.at, 4) for a, s in view(frozen[group])}
            assert seen == {key: stored for key, stored in then.items() if key % 4 >= cursor.at}


@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_any_budget_comes_to_an_end(budget):
    table = table_of(dict.fromkeys(range(40), 0))
    _, cursor = table.freeze()
    for key in range(40):
        table.tables[key % 4][key] = 1
    for _ in range(200):
        table.merge(budget)
    table.release(cursor)
    calls = 0
    while table.merge(budget) == 0:
        calls += 1
        assert calls < 200
    assert not table.layered
