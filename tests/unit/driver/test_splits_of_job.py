"""Readers that ask for splits before all readers are connected, over the real control plane. SPEC R9.4"""

import queue
from collections import deque
from contextlib import closing
from random import Random
from types import SimpleNamespace

import pytest

from headrace import StreamExecutionEnvironment
from headrace.api.durable import to_text, unpack
from headrace.api.sources import DynamicSource, SourceReader, SplitEnumerator
from headrace.checkpoint.plan import TaskId
from headrace.checkpoint.splits import Assignment, SplitAssigner
from headrace.config import Configuration
from headrace.control.control_server import ControlServer, WorkerKey
from headrace.control.messages import AskForSplit, AssignSplits, Register, Running
from headrace.control.worker_link import ControlClient
from headrace.driver.cluster import WorkerMessage
from headrace.driver.enumerators import Splits, SplitsFound
from headrace.driver.job_master import JobMaster
from headrace.driver.services import DriverIo, JobPort
from headrace.ids import new_job_id
from headrace.job.job_events import StartRequested
from headrace.job.machine import Phase
from headrace.job.restart import NoRestart
from headrace.job.status import JobStatus
from headrace.records.batch import Batch
from headrace.testing.simulation.cluster import SimulatedIo
from headrace.testing.storage_faults import MemoryStore


class Bounded(DynamicSource):
    def __init__(self, owned):
        self.owned = owned

    def enumerator(self, restored):
        return AllFound(self.owned)

    def reader(self, context, splits):
        return Reader(splits)


class AllFound(SplitEnumerator):
    complete = True

    def __init__(self, owned):
        self.owned = owned

    def discover(self):
        return []

    def snapshot(self):
        return None

    def owner(self, split, parallelism):
        return split % parallelism if self.owned else None


class Reader(SourceReader):
    def __init__(self, splits):
        self.left = list(splits)

    def poll(self, max_records):
        return Batch.of_rows([self.left.pop()]) if self.left else None

    def snapshot(self):
        return list(self.left)


def plan_of(owned):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.from_source(Bounded(owned)).print()
    return env._job_plan("splits")


class Driver:
    """The driver's side of two readers: what workers say is taken one by one, as in a job's thread."""

    def __init__(self, unassigned, owned=False):
        plan = plan_of(owned)
        (vertex,) = plan.graph.vertices
        self.vertex = vertex.id
        self.heard = queue.Queue()
        self.server = ControlServer("127.0.0.1", "127.0.0.1", 0, lambda w, m: self.heard.put((w, m)), lambda w: None)
        self.server.begin_attempt(1)
        self.splits = Splits(
            plan.graph, DriverIo(), JobPort(self.send, lambda call: call(), lambda why: None, lambda why: None)
        )
        self.splits.start_attempt(
            {vertex.head.id: to_text(SplitsFound(to_text(None), list(map(to_text, unassigned)), True)).encode()}
        )
        self.running = set()
        self.told = {0: queue.Queue(), 1: queue.Queue()}
        self.clients = {}

    def send(self, task, message):
        self.server.send(WorkerKey(1, 0, task.subtask), message)

    def connect(self, subtask):
        register = Register(0, subtask, 1, "here", 1)
        self.clients[subtask] = ControlClient(self.server.address, register, 5.0, self.told[subtask].put)
        assert isinstance(self.take(), Register)

    def say(self, subtask, message):
        self.clients[subtask].send(message)
        self.take()

    def take(self):
        worker, message = self.heard.get(timeout=60)
        if isinstance(message, AskForSplit):
            self.splits.asked(TaskId(self.vertex, worker.index))
        elif isinstance(message, Running):
            self.running.add(worker)
            if len(self.running) == 2:
                self.splits.job_running()
        return message

    def assignments(self, subtask):
        """What a reader is assigned until there is no more, and behind that: (splits, no more)."""
        found = []
        while True:
            try:
                message = self.told[subtask].get(timeout=0.3 if found and found[-1][1] else 60)
            except queue.Empty:
                return found
            if isinstance(message, AssignSplits):
                found.append((list(map(unpack, message.splits)), message.no_more))

    def close(self):
        for client in self.clients.values():
            client.close()
        self.server.stop()


def start(driver, early):
    """Reader 1 has nothing to read and asks at once: before reader 0 is connected, or after."""
    driver.connect(1)
    if not early:
        driver.connect(0)
    driver.say(1, Running())
    driver.say(1, AskForSplit())
    if early:
        driver.connect(0)
    driver.say(0, Running())


def test_the_assigner_tells_everybody_once():
    """So nobody may be missing when it does."""
    assigner = SplitAssigner(2, lambda split, parallelism: None, [], complete=True)
    assert assigner.request_split(1) == [Assignment(0, [], True), Assignment(1, [], True)]
    assert assigner.add_splits([], complete=False) == assigner.request_split(0) == []


@pytest.mark.parametrize("early", [False, True])
def test_every_reader_hears_that_there_is_no_more(early):
    with closing(Driver([])) as driver:
        start(driver, early)
        assert driver.assignments(1) == [([], True)]
        driver.say(0, AskForSplit())  # it has read what it was restored with
        assert driver.assignments(0) == [([], True)]


@pytest.mark.parametrize("early", [False, True])
def test_restored_splits_that_have_an_owner_now_are_not_lost(early):
    with closing(Driver([10, 11], owned=True)) as driver:
        start(driver, early)
        assert driver.assignments(1) == [([11], False), ([], True)]
        assert driver.assignments(0) == [([10], False), ([], True)]


class Wire:
    """A cluster that remembers what was sent."""

    def __init__(self):
        self.sent = []

    def open(self):
        pass

    def wait_for_slots(self, plan, given_up, timeout=None):
        pass

    def submit(self, submission):
        pass

    def send(self, attempt, worker, message):
        self.sent.append((worker, message))

    def stop(self, attempt, reason):
        pass


def test_a_message_for_a_worker_that_has_not_connected_fails_the_attempt():
    plan, wire, events = plan_of(owned=False), Wire(), deque([StartRequested()])
    io = SimulatedIo(lambda: 1000, MemoryStore(), Random(1), lambda: None)
    master = JobMaster(plan, new_job_id(), Configuration(), NoRestart(), wire, events.append, io=io)
    tasks = [TaskId(plan.graph.vertices[0].id, subtask) for subtask in (0, 1)]
    message = AssignSplits([], no_more=True)
    master._send(tasks[0], message)  # no attempt runs: no subtask could have been meant
    while master.machine.phase is not Phase.RUNNING:
        while events:
            master.handle(events.popleft())
        while io.starts.waiting:
            io.starts.run()
    master.handle(WorkerMessage(0, (0, 1), Register(0, 1, 0, "here", 1)))
    master._send(tasks[1], message)
    assert (wire.sent, master._failures) == ([((0, 1), message)], [])
    master._send(tasks[0], message)
    assert wire.sent == [((0, 1), message)]
    (failure,) = master._failures
    assert failure.message == (
        "AssignSplits was sent to Source -> Print (1/2), which has not connected yet; report this as a bug"
    )
    assert master.machine.status is JobStatus.FAILING


# --- discoveries ------------------------------------------------------------------------------------------------------


class Growing(AllFound):
    """Finds one more split with each discovery, and keeps how many it has found."""

    complete = False
    interval = 0

    def __init__(self):
        super().__init__(owned=True)
        self.count = 0

    def discover(self):
        self.count += 1
        return [self.count]

    def snapshot(self):
        return self.count


class Endless(Bounded):
    def enumerator(self, restored):
        return Growing()


class Discoveries:
    """Splits whose discoveries run in another thread, which is in our hands."""

    def __init__(self):
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(1)
        env.from_source(Endless(owned=True)).print()
        graph = env._job_plan("splits").graph
        self.works, self.calls, self.sent = deque(), deque(), []
        io = SimpleNamespace(now=lambda: 0, discoveries=SimpleNamespace(submit=self.works.append), warn=print)
        port = JobPort(
            lambda task, message: self.sent.extend(map(unpack, message.splits)),
            self.calls.append,
            lambda why: None,
            lambda why: None,
        )
        self.splits = Splits(graph, io, port)
        self.splits.start_attempt({})
        self.splits.job_running()

    def kept(self, checkpoint):
        (data,) = self.splits.snapshot(checkpoint).values()
        return unpack(unpack(data.decode()).state)


def test_a_checkpoint_does_not_keep_what_a_discovery_that_is_not_over_has_found():
    job = Discoveries()
    job.works.popleft()()  # the job's thread has not heard of it
    assert job.kept(1) == 0
    job.calls.popleft()()
    assert job.sent == [1]
    assert job.kept(2) == 1


def test_what_a_discovery_of_an_old_attempt_has_found_is_not_assigned():
    job = Discoveries()
    job.works.popleft()()
    job.splits.start_attempt({})
    job.splits.job_running()
    job.calls.popleft()()
    assert job.sent == []
    job.works.popleft()()
    job.calls.popleft()()
    assert job.sent == [1]
