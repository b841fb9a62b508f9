from __future__ import annotations

import pytest

from headrace.errors import InvalidArgument
from headrace.records.types import PICKLED, Types
from headrace.state.api import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from headrace.state.ttl_config import CompactFilter


@pytest.mark.parametrize("name", [None, "", 5])
def test_a_descriptor_needs_a_name(name):
    # SPEC R1.2
    with pytest.raises(InvalidArgument, match="ValueStateDescriptor needs a name: a str that is not empty"):
        ValueStateDescriptor(name, "bigint")
    with pytest.raises(
        InvalidArgument, match=r"the state name 'a\\udcff' cannot be stored: its character 2 is a lone surr"
    ):
        ValueStateDescriptor("a\udcff")


def test_types_are_given_in_any_spelling():
    assert ValueStateDescriptor("v", Types.LONG()).type == ValueStateDescriptor("v", "bigint").type
    assert ListStateDescriptor("l").type is PICKLED
    descriptor = MapStateDescriptor("m", Types.STRING(), "a int")
    assert (repr(descriptor.map_key_type), repr(descriptor.type)) == ("string", "row<a int>")
    assert ValueStateDescriptor("v").map_key_type is None


def test_equality_is_kind_and_name():
    # SPEC R1.2
    assert ValueStateDescriptor("x", "int") == ValueStateDescriptor("x", "string")
    assert ValueStateDescriptor("x") != ListStateDescriptor("x")
    assert len({ValueStateDescriptor("x"), ValueStateDescriptor("x"), ValueStateDescriptor("y")}) == 2


def test_functions_are_checked_when_they_are_given():
    with pytest.raises(InvalidArgument, match="state 'r' needs a reduce function: a callable of two values"):
        ReducingStateDescriptor("r", None)
    with pytest.raises(InvalidArgument, match="lacks get_result, merge"):
        AggregatingStateDescriptor("a", type("Half", (), {"create_accumulator": list, "add": print}))


def test_ttl_takes_a_plain_length():
    descriptor = ValueStateDescriptor("v")
    descriptor.enable_time_to_live(Time.minutes(2))
    assert descriptor.ttl.ttl == 120_000
    descriptor.enable_time_to_live(
        StateTtlConfig.new_builder(1).set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    )
    assert descriptor.ttl is None


def test_the_whole_builder():
    built = (
        StateTtlConfig.new_builder(Time.hours(1))
        .update_ttl_on_read_and_write()
        .return_expired_if_not_cleaned_up()
        .use_processing_time()
        .cleanup_full_snapshot()
        .cleanup_incrementally(7, True)
        .cleanup_in_rocksdb_compact_filter(500, Time.minutes(1))
        .disable_cleanup_in_background()
        .build()
    )
    cleanup = built.get_cleanup_strategies()
    assert (built.ttl, built.renews_on_read, built.returns_expired) == (3_600_000, True, True)
    assert (cleanup.full_snapshot, cleanup.incremental, cleanup.compact_filter, cleanup.background) == (
        True,
        (7, True),
        CompactFilter(500, 60_000),
        False,
    )
    with pytest.raises(InvalidArgument, match="at least 1 entry per reading of the clock, got 0"):
        StateTtlConfig.new_builder(1).cleanup_in_rocksdb_compact_filter(0)
    with pytest.raises(InvalidArgument, match="periodic_compaction_time must not be negative, got -1 ms"):
        StateTtlConfig.new_builder(1).cleanup_in_rocksdb_compact_filter(1, -1)
