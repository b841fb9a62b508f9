"""Time to live (SPEC R2)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from lab import Lab

from headrace.errors import InvalidArgument, StateMigrationError
from headrace.records.key_groups import key_group
from headrace.state.api import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from namespaces import entry_count, select_namespace

TTL = 100


class Sum:
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


class Kind:
    """Each kind of state seen as one cell that is written, read, and has an empty value."""

    def __init__(self, name, make, write, read, empty):
        self.name, self.make, self.write, self.read, self.empty = name, make, write, read, empty

    def __repr__(self):
        return self.name


def map_read(state):
    return state.get("k")


KINDS = [
    Kind("value", lambda: ValueStateDescriptor("s", "string"), lambda s, v: s.update(v), lambda s: s.value(), None),
    Kind("untyped", lambda: ValueStateDescriptor("s"), lambda s, v: s.update(v), lambda s: s.value(), None),
    Kind(
        "list", lambda: ListStateDescriptor("s", "string"), lambda s, v: s.update([v]), lambda s: "".join(s.get()), ""
    ),
    Kind("map", lambda: MapStateDescriptor("s", "string", "string"), lambda s, v: s.put("k", v), map_read, None),
    Kind(
        "entries", lambda: MapStateDescriptor("s"), lambda s, v: s.put("k", v), lambda s: next(s.values(), None), None
    ),
    Kind(
        "reducing",
        lambda: ReducingStateDescriptor("s", lambda a, b: b, "string"),
        lambda s, v: s.add(v),
        lambda s: s.get(),
        None,
    ),
    Kind(
        "aggregating",
        lambda: AggregatingStateDescriptor("s", Last(), "string"),
        lambda s, v: s.add(v),
        lambda s: s.get(),
        None,
    ),
]


class Last(Sum):
    def create_accumulator(self):
        return ""

    def add(self, value, accumulator):
        return value


@pytest.fixture(params=KINDS, ids=repr)
def kind(request):
    return request.param


def config(ttl=TTL, *, reads=False, expired=False):
    builder = StateTtlConfig.new_builder(ttl)
    if reads:
        builder.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
    if expired:
        builder.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
    return builder


class Clocked:
    """A lab, a kind of state and its TTL: `at(time)` sets the clock and pauses first."""

    def __init__(self, lab, kind, ttl_config):
        self.lab, self.kind, self.ttl = lab, kind, ttl_config

    def state(self, key="key"):
        self.lab.key(key)
        descriptor = self.kind.make()
        descriptor.enable_time_to_live(self.ttl)
        return self.lab.state(descriptor)

    def write(self, time, text, key="key"):
        self.lab.pause()
        self.lab.now = time
        self.kind.write(self.state(key), text)

    def read(self, time, key="key"):
        self.lab.pause()
        self.lab.now = time
        return self.kind.read(self.state(key))

    def is_empty(self, time, key="key"):
        return self.read(time, key) == self.kind.empty


# --- R2.1


def test_config_rules():
    # SPEC R2.1
    for wrong in (0, -1, Time.hours(0), timedelta(0)):
        with pytest.raises(InvalidArgument, match="time to live must be more than 0 ms"):
            StateTtlConfig.new_builder(wrong)
    with pytest.raises(InvalidArgument, match="is not a duration"):
        StateTtlConfig.new_builder("1h")
    with pytest.raises(InvalidArgument, match="cleanup_incrementally needs at least 1 entry per access, got 0"):
        config().cleanup_incrementally(0, True)
    built = config().build()
    assert built.get_update_type() is StateTtlConfig.UpdateType.OnCreateAndWrite
    assert built.get_state_visibility() is StateTtlConfig.StateVisibility.NeverReturnExpired
    assert built.cleanup.incremental_size() == (5, False)  # SPEC R2.5 c
    assert config().disable_cleanup_in_background().build().cleanup.incremental_size() is None
    assert config().disable_cleanup_in_background().cleanup_incrementally(
        3, True
    ).build().cleanup.incremental_size() == (3, True)
    assert StateTtlConfig.new_builder(timedelta(seconds=2)).build().get_ttl() == Time.seconds(2)


def test_disabled_is_off(still_lab):
    # SPEC R2.1
    descriptor = ValueStateDescriptor("v", None, 42)
    descriptor.enable_time_to_live(config().set_update_type(StateTtlConfig.UpdateType.Disabled).build())
    still_lab.key(1)
    state = still_lab.state(descriptor)
    assert state.value() == 42
    state.update(1)
    still_lab.now = 10**9
    assert state.value() == 1


def test_default_is_ignored(lab):
    # SPEC R2.2
    descriptor = ValueStateDescriptor("v", None, 42)
    descriptor.enable_time_to_live(config().build())
    lab.key(1)
    assert lab.state(descriptor).value() is None


# --- R2.2 expiry


def test_exact_expiration_on_write(lab, kind):
    # SPEC R2.2 (TtlStateTestBase#testExactExpirationOnWrite)
    box = Clocked(lab, kind, config().build())
    box.write(0, "a")
    assert box.read(20) == "a"
    box.write(50, "b")
    assert box.read(120) == "b"
    box.write(170, "c")
    assert box.read(220) == "c"
    assert box.is_empty(300)
    assert lab.count("s") == 0


def test_the_boundary_is_expired(lab, kind):
    # SPEC R2.2
    box = Clocked(lab, kind, config().build())
    box.write(5, "a")
    assert box.read(5 + TTL - 1) == "a"
    assert box.is_empty(5 + TTL)


def test_exact_expiration_on_read(lab, kind):
    # SPEC R2.2 (testExactExpirationOnRead)
    box = Clocked(lab, kind, config(reads=True).build())
    box.write(0, "a")
    assert box.read(50) == "a"
    assert box.read(120) == "a"
    assert box.is_empty(250)
    assert lab.count("s") == 0


def test_expiration_timestamp_overflow(lab, kind):
    # SPEC R2.2 (testExpirationTimestampOverflow)
    box = Clocked(lab, kind, config(2**63 - 1).build())
    box.write(10, "a")
    assert box.read(50) == "a"


def test_snapshot_change_restore(lab, kind):
    # SPEC R2.2 (testSnapshotChangeRestore)
    box = Clocked(lab, kind, config().build())
    box.write(50, "old1", "k1")
    box.write(100, "old2", "k2")
    handles = lab.snapshot()
    box.write(170, "new1", "k1")
    box.write(170, "new2", "k2")
    lab.backend = lab.open(handles)
    lab.now = 180
    assert kind.read(box.state("k1")) == kind.empty
    assert kind.read(box.state("k2")) == "old2"


# --- R2.3 read path


def test_relaxed_expiration_on_write(lab, kind):
    # SPEC R2.3 (testRelaxedExpirationOnWrite)
    box = Clocked(lab, kind, config(expired=True).build())
    box.write(0, "a")
    assert box.read(120) == "a"
    assert lab.count("s") == 0
    assert box.is_empty(121)


def test_an_expired_value_is_overwritten(lab, kind):
    box = Clocked(lab, kind, config().build())
    box.write(0, "a")
    box.write(200, "b")
    assert box.read(250) == "b"
    assert box.is_empty(300)


# --- R2.4 per element


def ttl_list(lab, ttl_config):
    descriptor = ListStateDescriptor("l", "string")
    descriptor.enable_time_to_live(ttl_config)
    lab.key("key")
    return lab.state(descriptor)


def fill_list(lab, ttl_config):
    for time, text in ((0, "a"), (40, "b"), (80, "c")):
        lab.now = time
        ttl_list(lab, ttl_config).add(text)
        lab.pause()


def test_list_elements_expire_one_by_one(lab):
    # SPEC R2.4
    ttl = config().build()
    fill_list(lab, ttl)
    for time, expected in ((99, ["a", "b", "c"]), (100, ["b", "c"]), (140, ["c"])):
        lab.now = time
        assert ttl_list(lab, ttl).get() == expected
        lab.pause()
    assert entry_count(lab.backend, "l") in {0, 1}
    lab.now = 180
    assert ttl_list(lab, ttl).get() == []
    assert lab.count("l") == 0


def test_a_partly_expired_list_is_not_rewritten_by_a_read(still_lab):
    # SPEC R2.4
    still_lab.configure()
    ttl = config().disable_cleanup_in_background().build()
    fill_list(still_lab, ttl)
    still_lab.now = 100
    assert ttl_list(still_lab, ttl).get() == ["b", "c"]
    still_lab.now = 99  # the clock goes back, and the element is still there
    assert ttl_list(still_lab, ttl).get() == ["a", "b", "c"]


def test_reading_a_list_renews_the_live_elements(lab):
    # SPEC R2.4
    ttl = config(reads=True).build()
    fill_list(lab, ttl)
    lab.now = 120
    assert ttl_list(lab, ttl).get() == ["b", "c"]
    lab.pause()
    lab.now = 219
    assert ttl_list(lab, ttl).get() == ["b", "c"]
    lab.now = 319
    assert ttl_list(lab, ttl).get() == []


def test_expired_list_elements_may_be_seen(lab):
    # SPEC R2.4
    ttl = config(expired=True).build()
    fill_list(lab, ttl)
    lab.now = 500
    assert ttl_list(lab, ttl).get() == ["a", "b", "c"]
    assert ttl_list(lab, ttl).get() == []


def ttl_map(lab, ttl_config):
    descriptor = MapStateDescriptor("m", "string", "bigint")
    descriptor.enable_time_to_live(ttl_config)
    lab.key("key")
    return lab.state(descriptor)


def fill_map(lab, ttl_config):
    for time, key in ((0, "a"), (40, "b"), (80, "c")):
        lab.now = time
        ttl_map(lab, ttl_config).put(key, time)
        lab.pause()


def test_map_entries_expire_one_by_one(lab):
    # SPEC R2.4
    ttl = config().build()
    fill_map(lab, ttl)
    lab.now = 100
    assert dict(ttl_map(lab, ttl).items()) == {"b": 40, "c": 80}
    assert not ttl_map(lab, ttl).contains("a")
    lab.pause()
    lab.now = 140
    assert ttl_map(lab, ttl).get("b") is None
    assert sorted(ttl_map(lab, ttl).keys()) == ["c"]
    lab.now = 180
    assert not ttl_map(lab, ttl).is_empty()  # does not look at expiry
    assert list(ttl_map(lab, ttl).items()) == []
    assert ttl_map(lab, ttl).is_empty()  # but the iteration removed it
    assert lab.count("m") == 0


def test_reading_a_map_entry_renews_only_that_one(lab):
    # SPEC R2.4
    ttl = config(reads=True).build()
    fill_map(lab, ttl)
    lab.now = 90
    assert ttl_map(lab, ttl).get("a") == 0
    assert ttl_map(lab, ttl).contains("b")
    lab.pause()
    lab.now = 185
    assert dict(ttl_map(lab, ttl).items()) == {"a": 0, "b": 40}


def test_expired_map_entries_may_be_seen_once(lab):
    # SPEC R2.4
    ttl = config(expired=True).build()
    fill_map(lab, ttl)
    lab.now = 500
    assert ttl_map(lab, ttl).get("a") == 0
    assert ttl_map(lab, ttl).get("a") is None
    assert ttl_map(lab, ttl).contains("b")
    assert not ttl_map(lab, ttl).contains("b")
    assert list(ttl_map(lab, ttl).values()) == [80]
    assert lab.count("m") == 0


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: ReducingStateDescriptor("r", lambda a, b: a + b, "bigint"),
        lambda: AggregatingStateDescriptor("r", Sum(), "bigint"),
    ],
)
def test_adding_to_an_expired_aggregate(lab, make, expired):
    # SPEC R2.4
    def state():
        descriptor = make()
        descriptor.enable_time_to_live(config(expired=expired).build())
        lab.key("key")
        return lab.state(descriptor)

    state().add(1)
    lab.pause()
    lab.now = 150
    state().add(10)
    lab.pause()
    assert state().get() == (11 if expired else 10)
    lab.now = 249  # the result is as old as the last add
    assert state().get() == (11 if expired else 10)


def test_merging_takes_live_sides_only(lab):
    # SPEC R2.4
    descriptors = [
        (lambda: ReducingStateDescriptor("r", lambda a, b: a + b, "bigint"), 110),
        (lambda: AggregatingStateDescriptor("a", Sum(), "bigint"), 110),
        (lambda: ListStateDescriptor("l", "bigint"), [100, 10]),
    ]

    def described(make):
        descriptor = make()
        descriptor.enable_time_to_live(config().build())
        return descriptor

    for time, namespace, number in ((0, "old", 1), (60, "new", 10), (80, "target", 100)):
        lab.now = time
        lab.key("k")
        select_namespace(lab.backend, namespace)
        for make, _ in descriptors:
            lab.state(described(make)).add(number)
    lab.pause()
    lab.now = 120
    for make, expected in descriptors:
        descriptor = described(make)
        state = lab.state(descriptor)
        lab.key("k")
        lab.backend.merge_namespaces(descriptor, "target", ["old", "new"])
        select_namespace(lab.backend, "target")
        assert state.get() == expected
        assert lab.count(descriptor.name) == 1
    lab.now = 219
    for make, expected in descriptors:
        state = lab.state(described(make))
        assert state.get() == ([] if isinstance(expected, list) else expected)  # elements keep their stamps


# --- R2.5 cleanup


def fill(lab, ttl_config, keys=200, kind=KINDS[0]):
    box = Clocked(lab, kind, ttl_config)
    for key in range(keys):
        kind.write(box.state(key), "x")
    assert lab.count("s") == keys
    return box


def reopen(lab, kind, ttl_config, handles):
    lab.backend = lab.open(handles)
    return Clocked(lab, kind, ttl_config).state(-1)


def test_multiple_keys_with_snapshot_cleanup(lab, kind):
    # SPEC R2.5 b (testMultipleKeysWithSnapshotCleanup)
    ttl = config().cleanup_full_snapshot().disable_cleanup_in_background().build()
    box = fill(lab, ttl, 50, kind)
    lab.now = 50
    kind.write(box.state("young"), "y")
    lab.now = 120
    handles = lab.snapshot()
    assert lab.count("s") == 51  # the running state is not touched
    lab.now = 50  # the clock goes back
    reopen(lab, kind, ttl, handles)
    assert lab.count("s") == 1
    assert kind.read(box.state(3)) == kind.empty
    assert kind.read(box.state("young")) == "y"


def test_without_the_strategy_a_snapshot_holds_expired_state(lab, kind):
    # SPEC R2.5 b
    ttl = config().disable_cleanup_in_background().build()
    fill(lab, ttl, 20, kind)
    lab.now = 120
    handles = lab.snapshot()
    lab.now = 50
    reopen(lab, kind, ttl, handles)
    assert lab.count("s") == 20


def test_an_increment_forgets_what_expired(backend_name, tmp_path):
    # SPEC R2.5 b, for increments: an expired entry must not show its older self in the base
    lab = Lab(backend_name, tmp_path, "incremental")
    ttl = config().cleanup_full_snapshot().disable_cleanup_in_background().build()
    box = fill(lab, ttl, 50)
    lab.snapshot()
    lab.backend.notify_complete(lab.checkpoint)
    lab.now = 10
    KINDS[0].write(box.state(3), "changed")
    lab.now = 115
    handles = lab.snapshot()
    lab.now = 20
    reopen(lab, KINDS[0], ttl, handles)
    assert KINDS[0].read(box.state(3)) is None
    assert KINDS[0].read(box.state(4)) == "x"


def test_a_snapshot_drops_only_the_dead_head_of_a_list(lab):
    # SPEC R2.5 b
    ttl = config().cleanup_full_snapshot().disable_cleanup_in_background().build()
    for time, text in ((0, "a"), (60, "b"), (10, "c")):
        lab.now = time
        ttl_list(lab, ttl).add(text)
    lab.now = 120
    handles = lab.snapshot()
    lab.now = 20
    lab.backend = lab.open(handles)
    assert ttl_list(lab, ttl).get() == ["b", "c"]


def heap_only(lab):
    if lab.backend.name != "hashmap":
        pytest.skip("SPEC R2.5 c: a no-op on other backends")


def test_incremental_cleanup_of_the_whole_state(lab, kind):
    # SPEC R2.5 c (testIncrementalCleanupWholeState)
    heap_only(lab)
    ttl = config().cleanup_incrementally(5, True).build()
    fill(lab, ttl, 300, kind)
    lab.pause()
    Clocked(lab, kind, ttl).state(0)
    lab.now = 120
    for key in range(300):
        lab.key(key)  # selected, not accessed
    assert lab.count("s") == 0


def test_incremental_cleanup_per_record_in_batches(still_lab):
    # SPEC R2.5 c
    heap_only(still_lab)
    ttl = config().cleanup_incrementally(5, True).build()
    fill(still_lab, ttl, 300)
    still_lab.now = 120
    still_lab.backend.begin_batch(list(range(60)), [0] * 60)
    still_lab.backend.end_batch()
    assert still_lab.count("s") == 0


def test_incremental_cleanup_per_access(still_lab):
    # SPEC R2.5 c: the default is 5 entries at each access
    heap_only(still_lab)
    box = fill(still_lab, config().build(), 300)
    still_lab.backend.end_batch()  # what the writes were owed
    still_lab.now = 120
    for _ in range(10):
        still_lab.backend.begin_batch(["x"], [0])
        still_lab.backend.end_batch()
    assert still_lab.count("s") == 300  # no access, nothing is cleaned
    state = box.state(7)
    for _ in range(30):
        state.value()
    still_lab.backend.end_batch()
    assert 100 <= still_lab.count("s") <= 150
    for _ in range(60):
        state.value()
    still_lab.backend.end_batch()
    assert still_lab.count("s") == 0


def test_no_background_cleanup_when_disabled(still_lab):
    # SPEC R2.5 e
    ttl = config().disable_cleanup_in_background().build()
    box = fill(still_lab, ttl, 50)
    still_lab.now = 120
    state = box.state("other")
    for _ in range(100):
        state.value()
    still_lab.backend.end_batch()
    assert still_lab.backend.background_cleanup(10_000) == 0
    assert still_lab.count("s") == 50


def test_background_cleanup_needs_no_access(lab, kind):
    # Beyond SPEC R2.5 c: written once, never read, and yet it goes, in bounded steps
    ttl = config().build()
    fill(lab, ttl, 100, kind)
    lab.now = 50
    box = Clocked(lab, kind, ttl)
    kind.write(box.state("young"), "y")
    lab.pause()
    box.state("young")
    assert lab.backend.background_cleanup(10_000) == 0
    lab.now = 120
    removed = 0
    for _ in range(40):
        found = lab.backend.background_cleanup(10)
        assert found <= 10
        removed += found
    assert removed == 100
    assert lab.count("s") == 1
    lab.pause()
    assert kind.read(box.state("young")) == "y"


def test_cleanup_rewrites_partly_expired_collections(still_lab):
    # SPEC R2.5 c
    ttl = config().build()
    fill_list(still_lab, ttl)
    fill_map(still_lab, ttl)
    still_lab.now = 130
    assert still_lab.backend.background_cleanup(100) >= 2
    still_lab.now = 10
    assert ttl_list(still_lab, ttl).get() == ["b", "c"]
    assert "a" not in ttl_list(still_lab, ttl).get()
    assert "a" not in dict(ttl_map(still_lab, ttl).items())


def test_cleanup_beside_a_running_snapshot(lab):
    ttl = config().build()
    fill(lab, ttl, 300)
    run = lab.backend.snapshot(1000)
    lab.now = 120
    while lab.backend.background_cleanup(1000):
        pass
    assert lab.count("s") == 0
    handles = lab.keep(run.finish())
    lab.backend.end_batch()
    assert lab.count("s") == 0
    lab.now = 0
    reopen(lab, KINDS[0], ttl, handles)
    assert lab.count("s") == 300


# --- R2.6, R2.7


def test_settings_are_not_stored(lab, kind):
    # SPEC R2.6
    box = Clocked(lab, kind, config(50).build())
    box.write(0, "a")
    lab.restart()
    box.ttl = config(200, reads=True, expired=True).cleanup_full_snapshot().build()
    assert box.read(150) == "a"


@pytest.mark.parametrize("was_on", [True, False])
def test_ttl_toggled_at_restore_is_refused(lab, kind, was_on):
    # SPEC R2.7, strict
    descriptor = kind.make()
    if was_on:
        descriptor.enable_time_to_live(config().build())
    lab.key("key")
    kind.write(lab.backend.state(descriptor), "a")
    lab.restart()
    changed = kind.make()
    if not was_on:
        changed.enable_time_to_live(config().build())
    with pytest.raises(
        StateMigrationError, match=r"state 's': was stored with(out)? a time to live and is now declared with"
    ):
        lab.backend.state(changed)


def test_ttl_switched_on_by_migration(lab, kind):
    # SPEC R2.7 (testStateMigrationAfterChangingTTLFromDisablingToEnabling)
    lab.configure(migrate_ttl=True, incremental=lab.pause_kind == "incremental")
    lab.key("key")
    kind.write(lab.backend.state(kind.make()), "a")
    lab.now = 1000
    handles = lab.snapshot()
    lab.backend.notify_complete(lab.checkpoint)
    lab.backend = lab.open(handles, claim=True)
    box = Clocked(lab, kind, config().build())
    assert kind.read(box.state()) == "a"
    assert box.read(1099) == "a"
    assert box.is_empty(1100)  # as written at restore


def test_ttl_switched_off_by_migration(lab, kind):
    # SPEC R2.7 (testStateMigrationAfterChangingTTLFromEnablingToDisabling)
    lab.configure(migrate_ttl=True, incremental=lab.pause_kind == "incremental")
    box = Clocked(lab, kind, config().disable_cleanup_in_background().build())
    kind.write(box.state(), "a")
    lab.now = 1000  # long dead, yet it becomes permanent
    handles = lab.snapshot()
    lab.backend.notify_complete(lab.checkpoint)
    lab.backend = lab.open(handles, claim=True)
    lab.key("key")
    assert kind.read(lab.backend.state(kind.make())) == "a"
    lab.pause()
    lab.now = 10**9
    lab.key("key")
    assert kind.read(lab.backend.state(kind.make())) == "a"


def test_value_table_with_ttl(lab):
    keys = ["a", "b"]
    groups = [key_group(key, 128) for key in keys]

    def table(ttl_config):
        descriptor = ValueStateDescriptor("v", "bigint")
        descriptor.enable_time_to_live(ttl_config)
        return lab.backend.value_table(descriptor)

    ttl = config(reads=True).build()
    table(ttl).put_many(keys, groups, [1, 2])
    lab.pause()
    lab.now = 60
    assert table(ttl).get_many(keys[:1], groups[:1]) == [1]
    lab.pause()
    lab.now = 120
    assert table(ttl).get_many(keys, groups) == [1, None]
    assert lab.count("v") == 1


def test_the_compaction_filter_cleans_although_cleanup_in_background_is_disabled(still_lab):
    # SPEC R2.5 d: on rocksdb; a no-op on other backends
    ttl = config().disable_cleanup_in_background().cleanup_in_rocksdb_compact_filter(1000).build()
    fill(still_lab, ttl, 50)
    still_lab.now = 120
    for _ in range(10):
        still_lab.backend.background_cleanup(10_000)
    assert still_lab.count("s") == (0 if still_lab.backend.name == "rocksdb" else 50)


def test_incremental_cleanup_does_nothing_on_rocksdb(still_lab):
    # SPEC R2.5 c: it belongs to state in memory
    if still_lab.backend.name != "rocksdb":
        pytest.skip("tests of incremental cleanup are above")
    box = fill(still_lab, config().disable_cleanup_in_background().cleanup_incrementally(5, True).build(), 50)
    still_lab.now = 120
    state = box.state("other")
    for _ in range(100):
        state.value()
    still_lab.backend.end_batch()
    assert still_lab.backend.background_cleanup(10_000) == 0
    assert still_lab.count("s") == 50
