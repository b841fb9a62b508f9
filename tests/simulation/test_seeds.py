"""Seeds that pass, and bugs planted on purpose that the simulator must find: else it proves nothing."""

import re

import pytest
from msgspec.structs import replace

from effort import examples
from headrace.api.windows import TimeWindow
from headrace.job.watermark_alignment import WatermarkAligner
from headrace.records import batch, narrowing
from headrace.state.backend import KeyedStateBackend
from headrace.state.hashmap.increments import History
from headrace.state.timers import Timers
from headrace.storage import log
from headrace.testing.simulation.run import Run, play
from headrace.testing.simulation.timed import TIMED, aligned
from headrace.worker import inputs, output
from headrace.worker.inputs import Inputs
from headrace.worker.operators.windows import WindowOperator
from headrace.worker.subtask import Subtask
from headrace.worker.watermarks import WatermarkValve

FIXED = [*range(examples(40)), 823]  # 823: a replaced driver that waits for its restart ends
WITHIN = 500


@pytest.mark.parametrize("seed", FIXED)
def test_a_seed_passes(seed):  # SPEC R6.0, R5.8, R7.5, R9.2
    outcome, error = play(seed)
    assert error is None, f"{outcome}: {error}"


@pytest.fixture
def narrowed(monkeypatch):
    """Integers and timestamps of all batches are narrowed, of small ones too."""
    monkeypatch.setattr(batch, "FEW", 0)
    monkeypatch.setattr(output, "MIN_ROWS", 1)
    monkeypatch.setattr(narrowing, "MIN_SAVED", 0)


@pytest.mark.usefixtures("narrowed")
@pytest.mark.parametrize("seed", range(examples(12)))
def test_a_seed_passes_with_narrowed_records(seed):  # SPEC R6.0, R6.7
    outcome, error = play(seed)
    assert error is None, f"{outcome}: {error}"


@pytest.mark.usefixtures("narrowed")
def test_it_finds_that_persisted_records_are_read_as_if_they_were_not_narrowed(monkeypatch):  # SPEC R6.7
    captured = inputs._captured
    monkeypatch.setattr(inputs, "_captured", lambda frame, skip: replace(captured(frame, skip), flags=frame.flags & 1))
    assert "Invalid flatbuffers message" in first_failure()


def test_a_seed_plays_the_same_again():
    first, _ = play(3)
    again, _ = play(3)
    assert first == again


def first_failure(begin=0):
    """Why the first seed that fails does so."""
    found = next((error for seed in range(begin, WITHIN) if (error := play(seed)[1]) is not None), None)
    assert found is not None, f"the planted bug was not found within {WITHIN} seeds"
    return found


def test_it_finds_that_channels_are_not_blocked(monkeypatch):  # SPEC R6.2
    monkeypatch.setattr(Inputs, "block", lambda self, channel: None)
    assert "Violation" in first_failure()


def test_it_finds_a_commit_before_the_checkpoint_is_complete(monkeypatch):  # SPEC R9.2
    snapshot = Subtask._snapshot

    def hasty(self, instruction):
        snapshot(self, instruction)
        self.notify_complete(instruction.barrier.id)

    monkeypatch.setattr(Subtask, "_snapshot", hasty)
    assert "Violation" in first_failure()


def test_it_finds_an_increment_on_an_unconfirmed_checkpoint(monkeypatch):  # SPEC R7.4
    confirmed = History.base_for

    def hasty(self, live_entries):
        written = [taken for taken in self.undecided.values() if taken.segments is not None]
        return written[-1] if written else confirmed(self, live_entries)

    monkeypatch.setattr(History, "base_for", hasty)
    assert first_failure(begin=27)  # few seeds meet it; this is the first one


# --- event time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", TIMED, ids=lambda program: program.__name__)
@pytest.mark.parametrize("seed", range(examples(2)))
def test_a_program_by_event_time_passes(program, seed):  # SPEC R13.1, R13.6, R13.9, R13.10
    Run(seed, program=program).go()


def test_seeds_draw_every_program_by_event_time():
    assert {program.__name__ for program in TIMED} <= {Run(seed).outcome.program for seed in range(60)}


def test_aligned_sources_pause_and_go_on(monkeypatch):  # SPEC R13.7
    answers = []
    on_watermark = WatermarkAligner.on_watermark

    def noting(self, task, watermark):
        answer = on_watermark(self, task, watermark)
        answers.extend(answer.values())
        return answer

    monkeypatch.setattr(WatermarkAligner, "on_watermark", noting)
    options = {"pipeline.auto-watermark-interval": "1 ms"}
    for seed in range(10):
        Run(seed, program=aligned, calm=True, parallelism=[2], options=options).go()
        if True in answers and False in answers:
            return
    pytest.fail("no source was ever too far ahead")


def test_it_finds_a_clock_that_follows_the_fastest_channel(monkeypatch):  # SPEC R13.2
    monkeypatch.setattr(
        WatermarkValve,
        "_advance_to_least",
        lambda self: self._advance(max(one.watermark for one in self._channels.values())),
    )
    assert "Violation" in first_failure()


def test_it_finds_sessions_that_lose_records_when_they_merge(monkeypatch):  # SPEC R13.10
    monkeypatch.setattr(KeyedStateBackend, "merge_namespaces", lambda self, descriptor, target, sources: None)
    assert "Violation" in first_failure()


def test_it_finds_sessions_that_do_not_merge(monkeypatch):  # SPEC R13.10
    monkeypatch.setattr(TimeWindow, "intersects", lambda self, other: False)
    assert "Violation" in first_failure()


def test_it_finds_that_merged_sessions_are_not_in_the_snapshot(monkeypatch):  # SPEC R13.10
    monkeypatch.setattr(WindowOperator, "_keep_sessions", lambda self, address, sessions: None)
    assert "Violation" in first_failure()


def test_it_finds_timers_that_are_not_restored(monkeypatch):  # SPEC R13.6
    monkeypatch.setattr(Timers, "reload", lambda self: None)
    assert "Violation" in first_failure()


def test_it_finds_a_resume_that_drops_what_the_old_driver_completes_meanwhile(monkeypatch):
    monkeypatch.setattr(log, "_check_unmoved", lambda *_: None)
    assert re.search("taken over|DAMAGED|more than once", first_failure(begin=6))
