"""Broadcast state: the read-write and the read-only side (SPEC R4.4)."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.errors import IllegalState, InvalidArgument
from headrace.state.broadcast import BroadcastState, BroadcastStates, ReadOnlyBroadcastState


@pytest.fixture
def rules():
    state = BroadcastState("rules")
    state.put_all({"a": 1, "b": 2})
    return state


def test_put_get_remove(rules):
    # SPEC R4.4
    rules.put("c", 3)
    assert rules.get("c") == 3
    assert rules.get("missing") is None
    rules.remove("c")
    rules.remove("missing")
    assert not rules.contains("c")
    assert list(rules.items()) == [("a", 1), ("b", 2)]
    assert list(rules.keys()) == ["a", "b"]
    assert list(rules.values()) == [1, 2]
    assert not rules.is_empty()
    rules.clear()
    assert rules.is_empty()
    assert list(rules.items()) == []


def test_mapping_syntax(rules):
    rules["c"] = 3
    del rules["a"]
    assert rules["c"] == 3
    assert rules["a"] is None
    assert "b" in rules
    assert list(rules) == ["b", "c"]


def test_none_is_a_value(rules):
    rules.put("a", None)
    assert rules.get("a") is None
    assert rules.contains("a")


@pytest.mark.parametrize("call", [lambda s: s.put(None, 1), lambda s: s.put_all({"c": 3, None: 1})])
def test_none_is_no_key(rules, call):
    with pytest.raises(InvalidArgument) as caught:
        call(rules)
    assert str(caught.value) == (
        "[HR-2008] broadcast state 'rules': None cannot be a key; use a constant of your own for a single entry"
    )
    assert not rules.contains("c")


@pytest.mark.parametrize("method", ["get", "contains", "remove", "put"])
def test_key_that_cannot_be_hashed(rules, method):
    with pytest.raises(InvalidArgument) as caught:
        getattr(rules, method)(*[[1, 2]] * (2 if method == "put" else 1))
    assert str(caught.value) == (
        "[HR-2008] broadcast state 'rules': a list cannot be a key (unhashable type: 'list'); "
        "use an immutable value, for example a str, an int or a tuple"
    )


@pytest.mark.parametrize(("entries", "kind"), [(None, "NoneType"), ([1, 2], "list"), ("ab", "str")])
def test_put_all_of_something_else(rules, entries, kind):
    with pytest.raises(InvalidArgument, match=rf"broadcast state 'rules': put_all\(\) takes a dict, got {kind} \("):
        rules.put_all(entries)


def test_entries_may_change_while_the_broadcast_side_iterates(rules):
    for key, value in rules.items():
        rules.remove(key)
        rules.put(key * 2, value)
    for key in rules:
        rules.put(key + "!", 0)
    for value in rules.values():
        rules.put(value, value)
    assert list(rules) == ["aa", "bb", "aa!", "bb!", 1, 2, 0]


def test_read_only_side_follows(rules):
    # SPEC R4.4
    view = rules.read_only()
    assert isinstance(rules, ReadOnlyBroadcastState)
    rules.put("c", 3)
    rules.remove("a")
    assert list(view.items()) == [("b", 2), ("c", 3)]
    assert list(view.keys()) == list(view) == ["b", "c"]
    assert list(view.values()) == [2, 3]
    assert view.get("c") == view["c"] == 3
    assert view.contains("c")
    assert "a" not in view
    rules.clear()
    assert view.is_empty()


@pytest.mark.parametrize(
    ("attempt", "name"),
    [
        (lambda view: view.put("a", 2), "put()"),
        (lambda view: view.put_all({}), "put_all()"),
        (lambda view: view.remove("a"), "remove()"),
        (lambda view: view.clear(), "clear()"),
        (lambda view: view.__setitem__("a", 2), "state[key] = value"),
        (lambda view: view.__delitem__("a"), "del state[key]"),
    ],
)
def test_read_only_side_changes_nothing(rules, attempt, name):
    # SPEC R4.4
    with pytest.raises(IllegalState) as caught:
        attempt(rules.read_only())
    assert str(caught.value) == (
        f"[HR-2008] broadcast state 'rules' is read-only on this side: {name} is not allowed; change it in "
        "process_broadcast_element(), where every subtask makes the same change"
    )
    assert list(rules.items()) == [("a", 1), ("b", 2)]


def test_read_only_side_has_no_mutators(rules):
    view = rules.read_only()
    assert not {"put", "put_all", "remove", "clear"} & set(dir(view))
    with pytest.raises(AttributeError, match="'ReadOnlyBroadcastState' object has no attribute 'putt'"):
        _ = view.putt
    for iterator in (view.items(), view.keys(), view.values()):
        assert not hasattr(iterator, "clear")


def test_repr(rules):
    assert repr(rules) == "BroadcastState('rules', {'a': 1, 'b': 2})"
    assert repr(rules.read_only()) == "ReadOnlyBroadcastState('rules', {'a': 1, 'b': 2})"


def test_states_of_an_operator(rules):
    # SPEC R4.4: several named ones per operator
    limits = BroadcastState("limits")
    states = BroadcastStates([rules, limits])
    assert states.writable("limits") is limits
    assert type(states.read_only("rules")) is ReadOnlyBroadcastState
    states.writable("rules").put("c", 3)
    assert states.read_only("rules").get("c") == 3
    assert states.read_only("rules") is states.read_only("rules")


@pytest.mark.parametrize("side", ["writable", "read_only"])
def test_unknown_descriptor(rules, side):
    # SPEC R4.4: unknown descriptor -> IllegalArgumentException
    with pytest.raises(InvalidArgument) as caught:
        getattr(BroadcastStates([rules, BroadcastState("limits")]), side)("shapes")
    assert str(caught.value) == (
        "[HR-2008] broadcast state 'shapes' was not declared for this operator (declared: 'limits', 'rules'); "
        "pass its descriptor to stream.broadcast(...) as well"
    )
    with pytest.raises(InvalidArgument, match=r"\(declared: none\)"):
        getattr(BroadcastStates([]), side)("shapes")


class BroadcastMachine(RuleBasedStateMachine):
    """Any sequence of calls leaves what the same calls leave in a dict, on both sides."""

    def __init__(self):
        super().__init__()
        self.state = BroadcastState("s")
        self.view = self.state.read_only()
        self.model = {}

    keys = st.integers(0, 5)
    values = st.none() | st.integers()

    @rule(key=keys, value=values)
    def put(self, key, value):
        self.state.put(key, value)
        self.model[key] = value

    @rule(entries=st.dictionaries(keys, values))
    def put_all(self, entries):
        self.state.put_all(entries)
        self.model.update(entries)

    @rule(key=keys)
    def remove(self, key):
        self.state.remove(key)
        self.model.pop(key, None)

    @rule()
    def clear(self):
        self.state.clear()
        self.model.clear()

    @invariant()
    def agrees(self):
        for side in (self.state, self.view):
            assert dict(side.items()) == self.model
            assert list(side.keys()) == list(self.model)
            assert list(side.values()) == list(self.model.values())
            assert side.is_empty() == (not self.model)
            for key in range(6):
                assert side.contains(key) == (key in self.model)
                assert side.get(key) == self.model.get(key)


TestBroadcastMachine = BroadcastMachine.TestCase
