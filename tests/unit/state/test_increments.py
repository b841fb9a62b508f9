from __future__ import annotations

from headrace.checkpoint.handles import KeyedStateHandle, Payload, Segment, TypeMeta
from headrace.records.key_groups import KeyGroupRange
from headrace.state.hashmap.increments import Generation, History
from headrace.state.hashmap.tables import LayerChanges, newest_entries

PICKLED = TypeMeta("pickled")


def segment(name, size=100, *, increment=False, groups=(0, 7)):
    return Segment(1, increment, *groups, Payload(name, size, 0), [])


def checkpoint(history, checkpoint_id, *payloads, size=100):
    history.sequence += 1
    one = history.add(checkpoint_id, frozenset(payloads))
    one.segments = [segment(name, size, increment=index > 0) for index, name in enumerate(payloads)]
    return one


def test_nothing_is_tracked_before_the_first_checkpoint():
    history = History()
    assert not history.tracking
    assert history.base_for(1000) is None
    checkpoint(history, 1, "a")
    assert history.tracking
    assert history.base_for(1000) is None
    history.abort(1)
    assert not history.tracking


def test_the_base_is_confirmed_and_finished():
    history = History()
    checkpoint(history, 1, "a")
    history.sequence += 1
    running = history.add(2, frozenset("b"))
    history.confirm(2)  # its run is not done
    assert history.confirmed is None
    history.confirm(99)  # not ours
    assert history.confirmed is None
    history.confirm(1)
    assert history.confirmed.checkpoint_id == 1
    assert history.base_for(1000) is None  # 2 is full and may free what 1 has
    history.abort(2)
    assert history.base_for(1000) is history.confirmed
    assert running.segments is None


def test_confirming_drops_older_checkpoints_and_their_changes():
    history = History()
    checkpoint(history, 1, "a")
    for number in (2, 3, 4):
        checkpoint(history, number, "a", f"{number}")
        history.generations.append(Generation(history.sequence, {"s": LayerChanges([{number: number}])}))
    history.confirm(3)
    assert list(history.undecided) == [4]
    assert [one.sequence for one in history.generations] == [4]
    history.confirm(2)  # late, and superseded
    assert history.confirmed.checkpoint_id == 3


def test_deltas_that_outgrow_the_base_call_for_a_new_one():
    history = History()
    checkpoint(history, 1, "base", "a", size=100)
    history.confirm(1)
    assert history.base_for(10) is not None
    checkpoint(history, 2, "base", "a", "b", size=100)
    history.confirm(2)
    assert history.base_for(10) is None  # 200 bytes of increments on 100
    history = History()
    checkpoint(history, 1, "base")
    history.confirm(1)
    history.generations.append(Generation(2, {"s": LayerChanges([{1: 1, 2: 2}, {3: 3}])}))
    assert history.base_for(3) is not None
    assert history.base_for(2) is None
    assert history.outgrown(2)


def test_an_adopted_chain_is_clipped_to_our_groups():
    def handle(first, last, *segments):
        return KeyedStateHandle("hashmap", 5, 8, first, last, PICKLED, list(segments))

    history = History()
    old = segment("old", groups=(0, 7))
    history.adopt([handle(0, 3, segment("new", groups=(0, 3))), handle(4, 7, old), handle(0, 0)], KeyGroupRange(2, 5))
    found = [(one.payload.id, one.first_group, one.last_group) for one in history.confirmed.segments]
    assert found == [("new", 2, 3), ("old", 4, 5)]
    assert history.confirmed.checkpoint_id == 5
    assert history.tracking


def test_the_newest_change_of_an_address_counts():
    newest, older = {1: "new", 2: None}, {1: "old", 2: "old", 3: "old"}
    assert dict(newest_entries([newest, older])) == {1: "new", 2: None, 3: "old"}
    assert dict(newest_entries([older])) == older
    assert dict(newest_entries([])) == {}
