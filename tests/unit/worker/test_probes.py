"""Questions about a running subtask are answered beside its work, and never by the thread that listens to the driver."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from headrace.control.messages import RecordSample, SampleRecords
from headrace.worker.shell import Shell
from headrace.worker.subtask import Subtask
from rig import plan_of
from waiting import wait_until


class SlowToShow(Subtask):
    """A subtask whose records have a `__repr__` that takes as long as the test wants."""

    def __init__(self):
        self.may_end = threading.Event()
        self.asked = 0

    def sample(self, count):
        self.asked += 1
        assert self.may_end.wait(30)
        return ["record"] * count


def test_records_that_take_long_to_show_do_not_block_the_messages_of_the_driver():
    """A worker that gets no message from its driver for some time ends itself: a look at the dashboard would end the job."""
    plan = plan_of(lambda env: env.from_elements(1).print())
    shell, task, sent = Shell(plan.settings), SlowToShow(), []
    shell.client = SimpleNamespace(send=sent.append)
    shell._task = task
    for number in range(1, 5):
        shell._on_message(SampleRecords(number, 2))  # returns at once
    wait_until(lambda: task.asked and sum(one.name == "headrace-probe" for one in threading.enumerate()) == 1)
    assert sent == []
    task.may_end.set()
    wait_until(lambda: sent)
    assert [one.records for one in sent] == [["record"] * 2]
    assert task.asked == 1  # others are not answered meanwhile: they would take as long
    shell._on_message(SampleRecords(9, 1))
    wait_until(lambda: len(sent) == 2)
    assert sent[1] == RecordSample(9, ["record"])
