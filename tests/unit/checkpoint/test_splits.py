"""Splits that are found while a job runs: who gets which, and what a checkpoint keeps. SPEC R9.4"""

import pytest

from headrace import StreamExecutionEnvironment
from headrace.api.sources import DynamicSource, SourceReader, SplitEnumerator
from headrace.checkpoint.splits import Assignment, SplitAssigner
from headrace.errors import HeadraceError
from headrace.local import LocalRun
from headrace.records.batch import Batch
from headrace.worker.failures import OperatorFailure


def anyone(split, parallelism):
    return None


def test_splits_go_to_who_asks_first():
    assigner = SplitAssigner(3, anyone)
    assert assigner.add_splits(["a"], complete=False) == []
    assert assigner.request_split(2) == [Assignment(2, ["a"])]
    assert assigner.request_split(1) == assigner.request_split(0) == assigner.request_split(1) == []
    assert assigner.add_splits(["b", "c", "d"], complete=False) == [Assignment(1, ["b"]), Assignment(0, ["c"])]
    assert assigner.unassigned == ["d"]


def test_splits_with_an_owner_go_there_unasked():
    assigner = SplitAssigner(2, lambda split, parallelism: split % parallelism)
    assert assigner.add_splits([1, 2, 3], complete=False) == [Assignment(1, [1, 3]), Assignment(0, [2])]
    assert assigner.unassigned == []


def test_a_reader_that_asks_keeps_what_it_owns():
    assigner = SplitAssigner(2, lambda split, parallelism: 0 if split == "mine" else None)
    assigner.request_split(0)
    assert assigner.add_splits(["mine", "any"], complete=False) == [Assignment(0, ["mine", "any"])]


def test_every_reader_hears_once_that_there_is_no_more():
    assigner = SplitAssigner(2, anyone)
    assert assigner.add_splits(["a"], complete=True) == []  # not yet: it must be read first
    assert assigner.request_split(0) == [Assignment(0, ["a"]), Assignment(0, [], True), Assignment(1, [], True)]
    assert assigner.request_split(1) == assigner.add_splits([], complete=True) == []


def test_restored_splits_are_dealt_first():
    assigner = SplitAssigner(1, anyone, ["a", "b"], complete=True)
    assert assigner.add_splits([], complete=False) == []
    assert assigner.request_split(0) == [Assignment(0, ["a"])]
    assert assigner.request_split(0) == [Assignment(0, ["b"]), Assignment(0, [], True)]


def test_all_is_read_when_everybody_has_asked_again():
    assigner = SplitAssigner(2, lambda split, parallelism: split % parallelism)
    assigner.request_split(0)
    assert not assigner.idle
    assigner.request_split(1)
    assert assigner.idle
    assert assigner.add_splits([1, 3], complete=False) == [Assignment(1, [1, 3])]
    assert not assigner.idle
    assigner.request_split(1)
    assert assigner.idle


class Words(DynamicSource[str]):
    """A split is a word; two more are found every second."""

    def __init__(self, words, fail_at=None):
        self.words, self.fail_at = words, fail_at

    def enumerator(self, restored):
        return WordEnumerator(self, restored or 0)

    def reader(self, context, splits):
        return WordReader(splits)


class WordEnumerator(SplitEnumerator[str]):
    interval = 1000

    def __init__(self, source, at):
        self.source, self.at = source, at

    def discover(self):
        if self.source.fail_at is not None and self.at >= self.source.fail_at:
            raise OSError("the directory is gone")
        found = self.source.words[self.at : self.at + 2]
        self.at += len(found)
        self.complete = self.at == len(self.source.words)
        return found

    def snapshot(self):
        return self.at


class WordReader(SourceReader[str]):
    def __init__(self, splits):
        self.left, self.no_more = list(splits), False

    @property
    def wants_split(self):
        return not self.left

    def add_splits(self, splits):
        self.left += splits

    def no_more_splits(self):
        self.no_more = True
        self.finished = not self.left

    def poll(self, max_records):
        if not self.left:
            return None
        word = self.left.pop(0)
        self.finished = self.no_more and not self.left
        return Batch.of_rows([word])

    def snapshot(self):
        return list(self.left)


ALL = ["one", "two", "three", "four", "five", "six", "seven"]


def plan_of(words, parallelism=2, **options):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    stream = env.from_source(Words(words, **options)).uid("words")
    stream.map(str.upper).print()
    return env._job_plan("words")


def run(plan, **how):
    lines = []
    local = LocalRun(plan, lambda channel, payload: lines.extend(payload.decode().splitlines()), seed=1, **how)
    return local, lines


def said(lines):
    return sorted(line.split("> ")[-1] for line in lines)


def test_a_local_run_reads_every_split():
    local, lines = run(plan_of(ALL))
    local.run()
    assert said(lines) == sorted(word.upper() for word in ALL)
    assert local.time >= 3000


@pytest.mark.parametrize("parallelism", [1, 2, 5])
@pytest.mark.parametrize("at", [0, 1500, 2500])
def test_a_snapshot_keeps_what_is_found_assigned_and_not_found_yet(at, parallelism):
    first, before = run(plan_of(ALL))
    taken = []
    first.run(until=at, then=lambda: taken.append(first.snapshot()))
    second, after = run(plan_of(ALL, parallelism), restore=taken[0])
    second.run()
    assert said(before + after) == sorted(word.upper() for word in ALL)


def test_a_source_of_nothing_ends():
    local, lines = run(plan_of([]))
    local.run()
    assert lines == []


def test_an_enumerator_that_fails_says_so():
    local, _ = run(plan_of(ALL, fail_at=2))
    with pytest.raises((OSError, HeadraceError), match="the directory is gone"):
        local.run()


def test_a_reader_that_cannot_take_splits_says_what_it_lacks(monkeypatch):
    monkeypatch.delattr(WordReader, "add_splits")
    local, _ = run(plan_of(ALL))
    with pytest.raises(OperatorFailure) as caught:
        local.run()
    text = "WordReader is given splits while it runs, since its source is dynamic: it must define add_splits(splits)"
    assert str(caught.value.__cause__) == text
