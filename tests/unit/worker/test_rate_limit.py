"""A limit on the records of a source, whatever the source is."""

import pytest

from headrace.api.sources import UNCUT, SequenceSource
from headrace.errors import InvalidArgument
from headrace.records.types import as_type
from rig import Services, plan_of, subtask


def opened(rate, parallelism=1):
    source = SequenceSource(0, 9999, as_type("bigint"))
    plan = plan_of(lambda env: env.set_parallelism(parallelism).from_source(source, rate=rate).map(str))
    services = Services()
    services.time = 1000
    task = subtask(plan, "Source", services=services)
    task.open()
    return task.operators[0], services


@pytest.mark.parametrize(("rate", "parallelism"), [(1000, 1), (1000, 4), (0.5, 1), (7, 1), (50_000, 1)])
def test_never_more_than_the_rate_and_never_long_behind_it(rate, parallelism):
    source, clock = opened(rate, parallelism)
    given, share = 0, rate / parallelism
    for _ in range(400):
        count = source.poll(100_000)
        given += count
        assert given <= (clock.time - 1000) * share / 1000 + 1
        if not count and not source.reader.finished:
            assert source.ready_at() > clock.time
        clock.time = max(clock.time + 1, source.ready_at() or 0)
    assert given >= min(9999 // parallelism, (clock.time - 1000) * share / 1000 - share / 10 - 1)


def test_a_pause_is_not_made_up_for():
    source, clock = opened(1000)
    clock.time += 60_000
    assert source.poll(100_000) == 100


def test_what_must_not_be_cut_comes_at_once():
    source, _ = opened(10)
    assert source.poll(UNCUT) == 10_000
    assert source.reader.finished


def test_a_rate_must_be_positive():
    with pytest.raises(InvalidArgument, match="rate must be positive records per second, got 0"):
        opened(0)
