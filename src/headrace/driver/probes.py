"""Questions to workers that REST asks now and then: what their threads are doing, which records they have sent.

The job's thread sends questions and takes answers; the thread that asked waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypeAlias

from headrace.control.messages import RecordSample, StackSample
from headrace.job.job_events import Worker

Answer: TypeAlias = StackSample | RecordSample

_OPEN = 32  # questions that may wait for an answer; the oldest is closed with what it has


class Question:
    """A question to some subtasks, and the answers so far."""

    def __init__(self) -> None:
        self.subtasks: Mapping[Worker, int] = {}
        self.answers: dict[int, Answer] = {}
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()

    @property
    def missing(self) -> int:
        """The number of subtasks that have not answered."""
        return len(self.subtasks) - len(self.answers)

    def wait(self, seconds: float) -> list[tuple[int, Answer]]:
        """The answers by number of the subtask; some may be missing when the time is over."""
        self._closed.wait(seconds)
        return sorted(dict(self.answers).items(), key=lambda item: item[0])


class Probes:
    """The questions that wait for answers.

    >>> probes, question = Probes(), Question()
    >>> number = probes.begin(question, {(0, 0): 0, (0, 1): 1})
    >>> for index in (1, 0):
    ...     probes.answered((0, index), RecordSample(number, [f"record of {index}"]))
    >>> [sample.records for _, sample in question.wait(0)]
    [['record of 0'], ['record of 1']]
    """

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, Question] = {}

    def begin(self, question: Question, subtasks: Mapping[Worker, int]) -> int:
        """A question is sent to these workers; its number."""
        self._last += 1
        question.subtasks = subtasks
        if len(self._open) >= _OPEN:
            self._open.pop(next(iter(self._open))).close()
        if subtasks:
            self._open[self._last] = question
        else:
            question.close()
        return self._last

    def answered(self, worker: Worker, answer: Answer) -> None:
        question = self._open.get(answer.question)
        if question is None or worker not in question.subtasks:
            return
        question.answers[question.subtasks[worker]] = answer
        if len(question.answers) == len(question.subtasks):
            del self._open[answer.question]
            question.close()

    def release(self) -> None:
        """The attempt is over: no more answers come."""
        while self._open:
            self._open.popitem()[1].close()
