"""A limit on what a source gives, whatever the source is."""

import pytest

from headgate.api.rate_limit import limited
from headgate.api.sources import UNCUT, DynamicSource, ReaderContext, SequenceSource, SourceReader
from headgate.errors import InvalidArgument
from headgate.records.batch import Batch
from headgate.records.types import as_type


class Clock:
    now = 1000

    def __call__(self):
        return self.now


def numbers(rate, parallelism=1):
    clock = Clock()
    source = limited(SequenceSource(0, 9999, as_type("bigint")), rate)
    context = ReaderContext(0, parallelism, clock)
    return source.reader(context, source.first_splits(context)), clock


@pytest.mark.parametrize(("rate", "parallelism"), [(1000, 1), (1000, 4), (0.5, 1), (7, 1), (50_000, 1)])
def test_never_more_than_the_rate_and_never_long_behind_it(rate, parallelism):
    reader, clock = numbers(rate, parallelism)
    given, share = 0, rate / parallelism
    for _ in range(400):
        batch = reader.poll(100_000)
        given += 0 if batch is None else len(batch)
        assert given <= (clock.now - 1000) * share / 1000 + 1
        if batch is None and not reader.finished:
            assert reader.ready_at() > clock.now
        clock.now = max(clock.now + 1, reader.ready_at() or 0)
    assert given >= min(9999 // parallelism, (clock.now - 1000) * share / 1000 - share / 10 - 1)


def test_a_pause_is_not_made_up_for():
    reader, clock = numbers(1000)
    clock.now += 60_000
    assert len(reader.poll(100_000)) == 100


def test_what_must_not_be_cut_comes_at_once():
    reader, _ = numbers(10)
    assert len(reader.poll(UNCUT)) == 10_000
    assert reader.finished


class _Found(DynamicSource):
    def enumerator(self, restored):
        return ("enumerator", restored)

    def reader(self, context, splits):
        return _FoundReader()


class _FoundReader(SourceReader):
    wants_split, backlog, corrupt, holds_barrier = True, True, 3, True
    finished = False

    def __init__(self):
        self.heard = []

    def poll(self, max_records):
        return Batch.of_rows([1])

    def snapshot(self):
        return ["split"]

    def add_splits(self, splits):
        self.heard.append(splits)

    def no_more_splits(self):
        self.heard.append("no more")

    def notify_complete(self, splits):
        self.heard.append(("complete", splits))

    def take_side(self):
        return ["side"]

    def ready_at(self):
        return 77

    def close(self):
        self.heard.append("closed")


def test_everything_else_is_the_readers():
    source = limited(_Found(), 10)
    assert isinstance(source, DynamicSource)
    assert source.enumerator(5) == ("enumerator", 5)
    clock = Clock()
    reader = source.reader(ReaderContext(0, 1, clock), [])
    clock.now += 1000
    reader.poll(1)
    assert (reader.wants_split, reader.backlog, reader.corrupt, reader.holds_barrier) == (True, True, 3, True)
    assert (reader.finished, reader.snapshot(), reader.take_side(), reader.ready_at()) == (
        False,
        ["split"],
        ["side"],
        77,
    )
    reader.add_splits([1])
    reader.no_more_splits()
    reader.notify_complete([2])
    reader.close()
    assert reader._reader.heard == [[1], "no more", ("complete", [2]), "closed"]


def test_a_rate_must_be_positive():
    with pytest.raises(InvalidArgument, match="rate must be positive records per second, got 0"):
        limited(_Found(), 0)
