"""Raw keyed and operator state through checkpoint, restore and rescale (SPEC R1.11)."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from headrace import CheckpointedFunction, KeyedProcessFunction, MapFunction
from headrace.errors import IllegalState, InvalidArgument, UserCodeError
from headrace.records.key_groups import key_group, owner
from headrace.testing import OneInputHarness, run

WORDS = [f"w{n % 17}" for n in range(200)]
EXPECTED = Counter((word, n) for word, total in Counter(WORDS).items() for n in range(1, total + 1))


@pytest.fixture
def raw_state(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    import raw_state

    yield raw_state
    sys.modules.pop("raw_state", None)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 2), (3, 2), (4, 1)])
def test_counts_survive_a_rescale(raw_state, backend, before, after):
    # SPEC R1.11, R3.4
    def build(env):
        return (
            env.from_datagen(lambda n: WORDS[n], rate=100.0, count=len(WORDS))
            .key_by(lambda word: word)
            .process(raw_state.CountWords())
        )

    configuration = {"state.backend.type": backend}
    first = run(build, until=700, parallelism=before, snapshot=True, configuration=configuration)
    second = run(build, start_time=700, parallelism=after, restore=first.snapshot, configuration=configuration)
    assert 0 < len(first.records) < len(WORDS)
    assert Counter(first.records + second.records) == EXPECTED


def test_operator_streams_are_redistributed(raw_state):
    # SPEC R1.11, R4.2: two old subtasks wrote one stream each, and no count is lost or doubled
    def harness(subtask, parallelism, restore=None):
        place = {"parallelism": parallelism, "max_parallelism": 128, "subtask": subtask}
        return OneInputHarness(raw_state.CountWords(), key=lambda word: word, restore=restore, **place)

    snapshots = []
    for subtask in range(2):
        with harness(subtask, 2) as one:
            one.process_elements([word for word in WORDS if owner(key_group(word, 128), 128, 2) == subtask])
            snapshots.append(one.snapshot())
    for parallelism in (1, 2, 3):
        processed, counts = 0, Counter()
        for subtask in range(parallelism):
            with harness(subtask, parallelism, snapshots) as one:
                processed += one.function.processed
                assert not counts.keys() & one.function.counts.keys()
                counts.update(one.function.counts)
        assert processed == len(WORDS)
        assert counts == Counter(WORDS)


class Writing(KeyedProcessFunction, CheckpointedFunction):
    """Writes what `steps` does, and keeps what was restored."""

    def __init__(self, steps):
        self.steps = steps

    def process_element(self, value, ctx):
        yield value

    def snapshot_state(self, context):
        self.steps(context)

    def initialize_state(self, context):
        self.restored = [(group, stream.read()) for group, stream in context.get_raw_keyed_state_inputs()]


def test_raw_state_belongs_to_one_checkpoint():
    def write_once(context):
        if context.get_checkpoint_id() == 1:
            output = context.get_raw_keyed_state_output()
            output.start_new_key_group(output.key_groups.start)
            output.write(b"a")
            output.write(b"b")

    with OneInputHarness(Writing(write_once), key=lambda n: n) as harness:
        first, second = harness.snapshot(), harness.snapshot()
    for state, restored in ((first, [(0, b"ab")]), (second, [])):
        with OneInputHarness(Writing(lambda _: None), key=lambda n: n, restore=state) as harness:
            assert harness.function.restored == restored


def start_twice(context):
    context.get_raw_keyed_state_output().start_new_key_group(1)
    context.get_raw_keyed_state_output().start_new_key_group(1)


@pytest.mark.parametrize(
    ("steps", "error", "text"),
    [
        (start_twice, IllegalState, "key group 1 was started before"),
        (lambda c: c.get_raw_keyed_state_output().write(b"x"), IllegalState, "call start_new_key_group"),
        (
            lambda c: c.get_raw_keyed_state_output().start_new_key_group(500),
            InvalidArgument,
            "belongs to another subtask",
        ),
        (lambda c: c.get_raw_operator_state_output().write(b"x"), IllegalState, "call start_new_stream"),
    ],
)
def test_misuse(steps, error, text):
    with (
        OneInputHarness(Writing(steps), key=lambda n: n) as harness,
        pytest.raises(UserCodeError, match=text) as caught,
    ):
        harness.snapshot()
    assert isinstance(caught.value.__cause__, error)


class NotKeyed(MapFunction, CheckpointedFunction):
    def map(self, value):
        return value

    def snapshot_state(self, context):
        context.get_raw_keyed_state_output()

    def initialize_state(self, context):
        pass


def test_raw_keyed_state_needs_a_keyed_stream():
    with OneInputHarness(NotKeyed()) as harness, pytest.raises(UserCodeError, match="only be used on a keyed stream"):
        harness.snapshot()
