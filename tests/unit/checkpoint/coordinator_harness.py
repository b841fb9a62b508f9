"""A job around the coordinator: storage that answers at once (or not), tasks that acknowledge when told to."""

from collections import defaultdict
from random import Random

from headrace.checkpoint import events as ev
from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.decider import RequestId
from headrace.checkpoint.plan import PlanInput, PlanVertex, TaskId, TaskReport, TaskStatus, Topology
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.settings import CheckpointSettings, EndStatus
from headrace.checkpoint.stats import SubtaskMetrics
from headrace.ids import OperatorId, VertexId

LONG = 10**9  # ms; an interval that never comes within a test


def chain(*parallelism):
    """Vertices in a row, all to all: the first is a source."""
    return Topology(
        tuple(
            PlanVertex(VertexId(i), p, (PlanInput(VertexId(i - 1)),) if i else (), (OperatorId(f"op{i}"),))
            for i, p in enumerate(parallelism)
        )
    )


class Job:
    """Drives a coordinator. Instructions listed in `hold` are not answered by themselves."""

    def __init__(self, topology=None, *, hold=(), start=True, restored=None, now=1_000, rng=None, **options):
        coordinator_options = {
            k: options.pop(k) for k in ("driver_state", "next_full", "recovered", "next_id") if k in options
        }
        options.setdefault("interval_ms", LONG)
        self.coordinator = Coordinator(CheckpointSettings(**options), rng or Random(0), **coordinator_options)
        self.topology = topology or chain(1, 1)
        self.hold = set(hold)
        self.now = now
        self.alarm = None
        self.commit_number = 0
        self.attempt = 0
        self.out = []
        self.requests = 0
        self._replies = {
            ev.PrepareLocation: lambda i: ev.LocationReady(
                i.checkpoint_id, f"{i.target or 'dir'}/chk-{i.checkpoint_id}"
            ),
            ev.SnapshotDriverState: lambda i: ev.DriverStateReady(i.checkpoint_id, {OperatorId("op0"): b"splits"}),
            ev.WriteMetadata: lambda i: ev.MetadataWritten(
                i.checkpoint_id, f"{i.content.location}/_metadata", 100, snapshot=f"snapshot {i.checkpoint_id}"
            ),
            ev.ClaimLogEntry: self._claim,
            ev.DiscardCheckpoint: lambda i: ev.Discarded(i.checkpoint_id),
            ev.ReleaseShared: lambda _: ev.SharedReleased(),
        }
        if start:
            self.start(restored)

    def _claim(self, instruction):
        self.commit_number += 1
        return ev.LogEntryClaimed(instruction.checkpoint_id, self.commit_number)

    # --- doing ---

    def send(self, event):
        """Hand over one event and, in order, the answers to what it led to; gives all instructions."""
        events, led_to = [event], []
        while events:
            for instruction in self.coordinator.handle(events.pop(0), self.now):
                led_to.append(instruction)
                if isinstance(instruction, ev.ScheduleAt):
                    self.alarm = instruction.time
                elif type(instruction) in self._replies and type(instruction) not in self.hold:
                    events.append(self.reply(instruction))
        self.out += led_to
        return led_to

    def reply(self, instruction):
        return self._replies[type(instruction)](instruction)

    def start(self, restored=None):
        self.attempt += 1
        self.send(ev.AttemptStarted(self.attempt, self.topology, restored))
        for task in self.topology.tasks():
            self.status(task, TaskStatus.RUNNING)
        self.send(ev.JobStatusChanged(running=True))

    def fail(self):
        self.send(ev.JobStatusChanged(running=False))

    def end(self, status=EndStatus.FINISHED):
        return self.send(ev.JobEnded(status))

    def status(self, task, status):
        return self.send(ev.TaskStatusChanged(self.attempt, task, status))

    def finish(self, *tasks):
        for task in tasks or self.tasks:
            self.status(task, TaskStatus.FINISHED)

    def advance(self, ms):
        """Let time pass, stopping at every alarm."""
        end, led_to = self.now + ms, []
        while self.alarm is not None and self.alarm <= end:
            self.now, self.alarm = max(self.now, self.alarm), None
            led_to += self.send(ev.TimePassed())
        self.now = end
        return led_to

    def _request_id(self):
        self.requests += 1
        return RequestId(f"r{self.requests}")

    def trigger(self, full=False):
        """Ask for a checkpoint; gives the request's id."""
        request = self._request_id()
        self.send(ev.CheckpointRequested(request, full))
        return request

    def savepoint(self, target="sp", **options):
        request = self._request_id()
        self.send(ev.SavepointRequested(request, target, **options))
        return request

    def stop(self, target="sp", **options):
        request = self._request_id()
        self.send(ev.StopRequested(request, target, **options))
        return request

    def ack(self, checkpoint_id, *tasks, state="state", report=None, shared=None, attempt=None, **metrics):
        led_to = []
        for task in tasks or self.tasks:
            led_to += self.send(
                ev.Acknowledged(
                    attempt or self.attempt,
                    task,
                    checkpoint_id,
                    f"{state}-{checkpoint_id}-{task}" if state == "state" else state,
                    SubtaskMetrics(**metrics),
                    report or TaskReport(),
                    shared or {},
                )
            )
        return led_to

    def decline(self, checkpoint_id, task=None, reason=FailureReason.CHECKPOINT_DECLINED, message=""):
        return self.send(ev.Declined(self.attempt, task or self.tasks[0], checkpoint_id, reason, message))

    def complete(self, full=False, **metrics):
        """A checkpoint from request to completion; gives its id."""
        request = self.trigger(full)
        checkpoint_id = self.coordinator.pending[-1]
        self.ack(checkpoint_id, **metrics)
        assert self.result(request).checkpoint_id == checkpoint_id, self.result(request)
        return checkpoint_id

    # --- looking ---

    @property
    def tasks(self):
        return list(self.topology.tasks())

    @property
    def pending(self):
        return list(self.coordinator.pending)

    @property
    def queued(self):
        return self.coordinator.waiting

    @property
    def kept(self):
        return [checkpoint.id for checkpoint in self.coordinator.store.checkpoints]

    def all(self, kind):
        return [instruction for instruction in self.out if isinstance(instruction, kind)]

    def ids(self, kind):
        return [instruction.checkpoint_id for instruction in self.all(kind)]

    def triggered(self):
        return [instruction.barrier.id for instruction in self.all(ev.TriggerTasks)]

    def barrier(self, checkpoint_id):
        return next(i.barrier for i in self.all(ev.TriggerTasks) if i.barrier.id == checkpoint_id)

    def answers(self):
        found = defaultdict(list)
        for instruction in self.all(ev.CompleteRequest):
            found[instruction.request_id].append(instruction.result)
        return found

    def result(self, request):
        """The one answer to a request; None while there is none."""
        results = self.answers()[request]
        assert len(results) <= 1, results
        return results[0] if results else None

    def reason(self, request):
        result = self.result(request)
        return result.reason.name if isinstance(result, ev.RequestFailed) and result.reason else None


def task(vertex, subtask=0):
    return TaskId(VertexId(vertex), subtask)
