"""A source that works off a backlog says so, and checkpoints come at the interval for that. SPEC R9.4"""

from headrace.api.sources import Source, SourceReader
from headrace.control.messages import SourceBacklog
from headrace.testing.simulation.run import Run
from headrace.testing.simulation.world import one_input
from headrace.worker.mailbox import Mailbox
from rig import Services, plan_of, subtask


class Behind(Source):
    def splits(self, parallelism):
        return [0]

    def reader(self, context, splits):
        return BehindReader()


class BehindReader(SourceReader):
    backlog = True

    def poll(self, max_records):
        self.backlog = False  # one poll catches up

    def snapshot(self):
        return [0]


def test_the_link_tells_the_driver_of_every_change():
    task = subtask(
        plan_of(lambda env: env.from_source(Behind(), source_name="behind").print()), "behind", services=Services()
    )
    said = []
    mailbox = Mailbox(said.append)
    task.open()
    mailbox.serve(task)
    mailbox.serve(task)
    task.step(10)
    mailbox.serve(task)
    assert said == [SourceBacklog(True), SourceBacklog(False)]


def test_checkpoints_stop_while_there_is_a_backlog_if_the_interval_for_it_is_zero():
    options = {"execution.checkpointing.interval-during-backlog": "0 ms", "execution.checkpointing.interval": "10 ms"}
    run = Run(3, options=options, calm=True, program=one_input)
    source = next(w for w in run.driver.attempt.workers if w.task.source is not None)
    run.driver.service.on_message(source.id, SourceBacklog(True))
    while not source.task.data_finished:
        run.act()
    assert run.time > 1_000 + 20  # several intervals have passed
    assert (
        run.driver.service.coordinator.stats.snapshot().counts.total <= 1
    )  # the one that was due already, as in Flink
    run.driver.service.on_message(source.id, SourceBacklog(False))
    run.go()
    assert run.driver.service.coordinator.stats.snapshot().counts.completed > 0
