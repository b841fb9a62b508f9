"""Random interleavings against the definition of the cut (SPEC R6.0).

The model is a subtask with queues: it reads rows off its wires, processes the head of a queue, obeys its gate, and keeps
what it processed per channel as its state. For each checkpoint that it acknowledges, state plus captured rows must be
exactly (at least once: no less than) the rows before the barrier on every channel.
"""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from headrace.checkpoint.barriers.alignment import BarrierHandler
from headrace.checkpoint.barriers.instructions import (
    Block,
    CaptureComplete,
    Decline,
    SendCancelMarker,
    StartCapture,
    StopCapture,
    TakeSnapshot,
    Unblock,
)
from headrace.checkpoint.barriers.tracker import BarrierTracker
from headrace.checkpoint.types import AlignmentKind, Barrier, CheckpointOptions

END = "end"


@dataclass(frozen=True)
class Cancel:
    id: int


@dataclass
class Snapshot:
    state: dict
    captured: dict = field(default_factory=dict)


class Subtask:
    """Rows on a wire and in a queue are ints (records), barriers, cancel markers and END."""

    def __init__(self, gate, wires, restored=None, *, drains=False, room=None):
        self.gate, self.wires, self.drains, self.room = gate, wires, drains, room
        self.restored = {channel: deque(rows) for channel, rows in (restored or {}).items()}
        self.queues = {channel: deque() for channel in wires} | self.restored
        self.state = {channel: [] for channel in self.queues}
        self.now = 0
        self.blocked, self.capturing = set(), set()
        self.snapshots, self.outcome = {}, {}
        self.started, self.refused = set(), set()
        self.sent = []  # barriers and cancel markers, as the readers downstream see them

    # --- what may happen next

    def readable(self):
        full = self.room is not None and sum(map(len, self.queues.values())) >= self.room
        if full and not self.gate.needs_reading:  # SPEC R6.5: read on only while a barrier has not been read
            return []
        return [channel for channel, wire in self.wires.items() if wire]

    def processable(self):
        if self.drains and self.capturing:
            return []
        if any(self.restored.values()):
            return [channel for channel, rows in self.restored.items() if rows]
        return [channel for channel, rows in self.queues.items() if rows and channel not in self.blocked]

    # --- steps

    def read(self, channel):
        row, gate = self.wires[channel].popleft(), self.gate
        self.queues[channel].append(row)
        if isinstance(row, Barrier):
            self.apply(gate.on_barrier_read(channel, row, self.now))
        elif isinstance(row, Cancel):
            self.apply(gate.on_cancel_marker_read(channel, row.id, self.now))
        elif row is END:
            self.apply(gate.on_end_of_partition_read(channel, self.now))
        elif channel in self.capturing:
            self.snapshots[gate.pending[0]].captured[channel].append(row)

    def process(self, channel):
        row, gate = self.queues[channel].popleft(), self.gate
        if isinstance(row, Barrier):
            self.apply(gate.on_barrier(channel, row, self.now))
        elif isinstance(row, Cancel):
            self.apply(gate.on_cancel_marker(channel, row.id, self.now))
        elif row is END:
            self.apply(gate.on_end_of_partition(channel, self.now))
        else:
            self.state[channel].append(row)
            gate.on_data(channel, 1)
            self.emit(row)
        if channel in self.restored and not self.queues[channel]:
            self.apply(gate.on_end_of_partition(channel, self.now))

    def abort(self, checkpoint):
        """The coordinator's abort: what it finds finished stays finished."""
        pending = checkpoint in self.gate.pending
        if checkpoint > self.gate.latest:
            self.refused.add(checkpoint)
        self.apply(self.gate.on_aborted(checkpoint))
        if pending and checkpoint not in self.gate.pending:
            self.end(checkpoint, "aborted")

    def emit(self, row):
        """Pass a processed record on."""

    def end(self, checkpoint, how):
        assert checkpoint not in self.outcome, "a checkpoint ends once"
        assert checkpoint not in self.refused, "the coordinator aborted it before it began"
        self.outcome[checkpoint] = how

    # --- obedience

    def apply(self, instructions):
        for instruction in instructions:
            match instruction:
                case Block(channel):
                    assert channel not in self.blocked
                    self.blocked.add(channel)
                case Unblock(channels):
                    assert set(channels) <= self.blocked
                    self.blocked -= set(channels)
                case StartCapture(checkpoint, channels):
                    assert not self.capturing
                    self.capturing = set(channels)
                    snapshot = self.snapshots.setdefault(checkpoint, Snapshot({}))
                    snapshot.captured = {channel: self.in_queue(channel, checkpoint) for channel in channels}
                case StopCapture(_, channels):
                    assert set(channels) <= self.capturing
                    self.capturing -= set(channels)
                case TakeSnapshot(barrier, unaligned, _):
                    self.take(barrier, unaligned)
                case CaptureComplete(checkpoint, _):
                    assert not self.capturing
                    self.end(checkpoint, "acked")
                case Decline(checkpoint, _):
                    self.end(checkpoint, "declined")
                case SendCancelMarker(checkpoint):
                    self.send(Cancel(checkpoint))
        self.started.update(self.gate.pending)
        if isinstance(self.gate, BarrierHandler):
            at = self.gate._at
            assert self.blocked == (set() if at is None else set(at.blocked))
            assert self.capturing == (set(at.waiting) if at is not None and at.taken else set())

    def take(self, barrier, unaligned):
        assert all(barrier.id > other.id for other in self.sent), "ids strictly increase"
        self.send(barrier)
        snapshot = self.snapshots.setdefault(barrier.id, Snapshot({}))
        snapshot.state = {channel: list(rows) for channel, rows in self.state.items()}
        if not unaligned:
            self.end(barrier.id, "acked")

    def send(self, event):
        assert all(event.id >= other.id for other in self.sent), "events of a newer checkpoint are never overtaken"
        assert event not in self.sent
        self.sent.append(event)

    def in_queue(self, channel, checkpoint):
        found = []
        for row in self.queues[channel]:
            if isinstance(row, Barrier) and row.id == checkpoint:
                break
            if isinstance(row, int):
                found.append(row)
        return found


# --- one subtask ----------------------------------------------------------------------------------------------------------

KINDS = {
    "aligned": CheckpointOptions(),
    "timed": CheckpointOptions(alignment=AlignmentKind.ALIGNED_WITH_TIMEOUT, timeout_ms=5),
    "unaligned": CheckpointOptions(alignment=AlignmentKind.UNALIGNED),
    "at least once": CheckpointOptions(alignment=AlignmentKind.AT_LEAST_ONCE),
}


@st.composite
def scripts(draw, kinds, *, tidy=False):
    """What the writers send: (rows per channel, barrier per checkpoint); tidy: each barrier on each channel."""
    channels = range(draw(st.integers(1, 4)))
    rows = {channel: [] for channel in channels}
    gone = set()
    barriers = {}
    serial = iter(range(10**6))
    for checkpoint in range(1, draw(st.integers(1, 5)) + 1):
        barrier = Barrier(checkpoint, draw(st.integers(0, 20)), KINDS[draw(st.sampled_from(kinds))])
        barriers[checkpoint] = barrier
        clean = tidy or draw(st.booleans())
        for channel in channels:
            if channel in gone:
                continue
            rows[channel] += [next(serial) for _ in range(draw(st.integers(0, 3)))]
            fate = (
                "barrier" if clean else draw(st.sampled_from(["barrier", "barrier", "cancel", "both", "none", "end"]))
            )
            if fate in {"barrier", "both"}:
                hurried = barrier.deadline is not None and draw(st.booleans())  # a writer switched by itself
                rows[channel].append(barrier.as_unaligned() if hurried else barrier)
            if fate in {"cancel", "both"}:
                rows[channel].append(Cancel(checkpoint))
            if fate == "end":
                gone.add(channel)
    for channel in channels:
        rows[channel] += [next(serial) for _ in range(draw(st.integers(0, 2)))]
        if channel in gone or draw(st.booleans()):
            rows[channel].append(END)
    return rows, barriers


def before(rows, checkpoint):
    """The records of a channel before the barrier; all, if it ended without one."""
    found = []
    for row in rows:
        if isinstance(row, Barrier) and row.id == checkpoint:
            return found
        if isinstance(row, int):
            found.append(row)
    return found


def hangs(rows, checkpoint):
    """Whether a checkpoint waits with reason: some channel brings nothing that decides it, however long one waits."""
    return any(
        not any(row is END or (not isinstance(row, int) and row.id >= checkpoint) for row in wire)
        for wire in rows.values()
    )


class Play:
    """Runs a script in an order that hypothesis chooses, then to its end.

    Tidy: one checkpoint at a time, none aborted, as long as nothing goes wrong.
    """

    def __init__(self, data, subtask, barriers, *, tidy=False):
        self.data, self.subtask, self.tidy = data, subtask, tidy
        self.messages = []  # of the control plane
        for checkpoint, barrier in barriers.items():
            if barrier.options.unaligned or barrier.deadline is not None:
                self.messages.append(("announce", barrier.as_unaligned()))
            if not tidy:
                self.messages.append(("abort", checkpoint))

    def moves(self):
        subtask = self.subtask
        return [("read", channel) for channel in subtask.readable() if self.triggered(subtask.wires[channel][0])] + [
            ("process", channel) for channel in subtask.processable()
        ]

    def triggered(self, row):
        """Whether the coordinator has come so far."""
        return not self.tidy or not isinstance(row, Barrier) or row.id == 1 or row.id - 1 in self.subtask.outcome

    def run(self):
        moves = self.moves()
        for choice in self.data.draw(st.lists(st.integers(0, 99), max_size=80)):
            if not moves:
                break
            if choice >= 80 and self.messages:
                self.deliver(choice)
            elif choice >= 76:
                self.do("limit" if choice == 79 and not self.tidy else "time", choice - 75)
            else:
                self.do(*moves[choice % len(moves)])
            moves = self.moves()
        last_words = self.data.draw(st.booleans(), label="last words")
        while moves:
            if last_words and self.messages and moves[0][0] == "process":
                self.deliver(0)  # all is read, and much of it is in the queues: the checkpoint must see it
            else:
                self.do(*moves[0])
            moves = self.moves()

    def deliver(self, number):
        message = self.messages.pop(number % len(self.messages))
        if self.triggered(message[1]):
            self.do(*message)

    def do(self, what, argument):
        subtask = self.subtask
        if what == "announce":
            subtask.apply(subtask.gate.on_announced(argument, subtask.now))
        elif what == "abort":
            subtask.abort(argument)
        elif what == "limit":
            subtask.apply(subtask.gate.on_limit_exceeded())
        elif what == "time":
            subtask.now += argument * 3
            subtask.apply(subtask.gate.on_time(subtask.now))
        else:
            getattr(subtask, what)(argument)


def play(data, kinds, make_gate, *, tidy=False):
    rows, barriers = data.draw(scripts(kinds, tidy=tidy), label="scripts")
    restored = {f"restored {i}": [-1 - 10 * i, -2 - 10 * i] for i in range(data.draw(st.integers(0, 2)))}
    gate = make_gate([*rows, *restored], restored)
    subtask = Subtask(
        gate,
        {channel: deque(wire) for channel, wire in rows.items()},
        restored,
        drains=data.draw(st.booleans(), label="drains"),
        room=data.draw(st.sampled_from([None, 2, 5]), label="room"),
    )
    Play(data, subtask, barriers, tidy=tidy).run()
    tracker = isinstance(gate, BarrierTracker)  # it may wait in vain, for it holds up nobody
    assert tracker or all(hangs(rows, checkpoint) for checkpoint in gate.pending)
    if tracker or not gate.pending:
        assert not any(subtask.wires.values()), "all is read"
        assert not any(subtask.queues.values()), "no channel stays blocked for ever"
        assert (subtask.blocked, subtask.capturing) == (set(), set())
        assert set(gate._open) == {channel for channel in rows if END not in rows[channel]}
    return rows | restored, subtask


@given(data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_exactly_once(data):  # SPEC R6.0, R6.2, R6.5, R6.6
    def make_gate(channels, restored):
        forced = [c for c in channels if c not in restored and data.draw(st.integers(0, 3), label="forced") == 0]
        after_finish = data.draw(st.booleans(), label="after finish")
        deadlines = data.draw(st.booleans(), label="deadlines")
        return BarrierHandler(
            channels, restored=restored, forced_aligned=forced, after_finish=after_finish, deadlines=deadlines
        )

    rows, subtask = play(data, ["aligned", "timed", "unaligned"], make_gate)
    for checkpoint, snapshot in subtask.snapshots.items():
        if subtask.outcome.get(checkpoint) == "acked":
            for channel in rows:
                cut = snapshot.state[channel] + snapshot.captured.get(channel, [])
                assert cut == before(rows[channel], checkpoint)
        assert subtask.gate._forced.isdisjoint(snapshot.captured)
    # each that began ends in exactly one way: acked, declined, or aborted by the coordinator
    assert subtask.started == (subtask.outcome.keys() & subtask.started) | set(subtask.gate.pending)


@given(data=st.data(), tracker=st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_all_checkpoints_complete_when_nothing_goes_wrong(data, tracker):
    def make_gate(channels, restored):
        if tracker:
            return BarrierTracker(channels, restored=restored)
        forced = [c for c in channels if c not in restored and data.draw(st.integers(0, 3), label="forced") == 0]
        return BarrierHandler(channels, restored=restored, forced_aligned=forced)

    kinds = ["at least once"] if tracker else ["aligned", "timed", "unaligned"]
    rows, subtask = play(data, kinds, make_gate, tidy=True)
    barriers = [row.id for row in rows[0] if isinstance(row, Barrier)]
    assert subtask.outcome == dict.fromkeys(barriers, "acked")


@given(data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_aligned_stores_no_rows(data):  # SPEC R6.0: the channels are empty at the cut
    def make_gate(channels, restored):
        return BarrierHandler(channels, restored=restored)

    rows, subtask = play(data, ["aligned"], make_gate)
    for checkpoint, snapshot in subtask.snapshots.items():
        assert subtask.outcome[checkpoint] == "acked"
        assert snapshot.captured == {}
        assert snapshot.state == {channel: before(rows[channel], checkpoint) for channel in rows}


@given(data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_at_least_once(data):  # SPEC R6.0, R6.3
    def make_gate(channels, restored):
        return BarrierTracker(channels, restored=restored, after_finish=data.draw(st.booleans()))

    rows, subtask = play(data, ["at least once"], make_gate)
    assert not subtask.blocked
    for checkpoint, snapshot in subtask.snapshots.items():
        assert subtask.outcome[checkpoint] == "acked"
        for channel in rows:
            cut = before(rows[channel], checkpoint)
            assert snapshot.state[channel][: len(cut)] == cut  # a superset: nothing is lost


# --- a whole job: two sources, two subtasks in the middle, one at the end -----------------------------------------------------


class Node(Subtask):
    """A subtask whose output goes to the wires of others, and to none at the end of the job."""

    def __init__(self, name, gate, writers):
        super().__init__(gate, {writer: deque() for writer in writers})
        self.name, self.readers, self.turn, self.emitted = name, [], 0, {}
        self.cut = {}  # checkpoint -> records sent to each reader before its barrier
        self.finished = False

    def emit(self, row):
        if self.readers:
            reader = self.readers[self.turn % len(self.readers)]
            self.turn += 1 + row % 2
            reader.wires[self.name].append(row)
            self.emitted.setdefault(reader.name, []).append(row)

    def send(self, event):
        super().send(event)
        if isinstance(event, Barrier):
            self.cut[event.id] = {name: list(rows) for name, rows in self.emitted.items()}
        for reader in self.readers:
            reader.wires[self.name].append(event)

    def finish(self):
        self.finished = True
        for reader in self.readers:
            reader.wires[self.name].append(END)

    def process(self, channel):
        super().process(channel)
        if not self.gate._open:
            self.finish()


class Job:
    """Sources and a coordinator that triggers, announces and aborts; all messages take their time."""

    def __init__(self, data, make_gate, options):
        self.data, self.options = data, options
        names = ["s0", "s1"]
        self.sources = [Node(name, make_gate([]), []) for name in names]
        self.middle = [Node(name, make_gate(names), names) for name in ("m0", "m1")]
        self.sink = Node("t", make_gate(["m0", "m1"]), ["m0", "m1"])
        for source in self.sources:
            source.readers = list(self.middle)
        for middle in self.middle:
            middle.readers = [self.sink]
        self.nodes = [*self.sources, *self.middle, self.sink]
        self.messages, self.aborted = [], set()
        self.next_id, self.serial = 1, 0

    def moves(self):
        found = [(node.read, channel) for node in self.nodes for channel in node.readable()]
        return found + [(node.process, channel) for node in self.nodes for channel in node.processable()]

    def trigger(self):
        barrier = Barrier(self.next_id, 0, self.options)
        self.next_id += 1
        self.messages += [("trigger", source, barrier) for source in self.sources]
        if barrier.options.unaligned or barrier.deadline is not None:
            self.messages += [("announce", node, barrier.as_unaligned()) for node in self.nodes]

    def deliver(self, number):
        what, node, payload = self.messages.pop(number % len(self.messages))
        if what == "trigger" and not node.finished:
            node.apply(node.gate.trigger(payload, node.now))
        elif what == "announce" and not (node.finished or node in self.sources):
            node.apply(node.gate.on_announced(payload, node.now))
        elif what == "abort":
            node.abort(payload)

    def watch(self):
        """A decline of one is the end for all."""
        for node in self.nodes:
            for checkpoint, how in node.outcome.items():
                if how == "declined" and checkpoint not in self.aborted:
                    self.aborted.add(checkpoint)
                    self.messages += [("abort", other, checkpoint) for other in self.nodes]

    def step(self, choice):
        moves = self.moves()
        if choice < 12:
            source = self.sources[choice % 2]
            if not source.finished:
                source.emit(self.serial)
                self.serial += 1
        elif choice < 14:
            self.trigger()
        elif choice < 30 and self.messages:
            self.deliver(choice)
        elif moves:
            act, argument = moves[choice % len(moves)]
            act(argument)
        self.watch()

    def run(self):
        for choice in self.data.draw(st.lists(st.integers(0, 99), min_size=20, max_size=200)):
            self.step(choice)
        while self.messages:
            self.deliver(0)
            self.watch()
        for source in self.sources:
            source.finish()
        while moves := self.moves():
            act, argument = moves[0]
            act(argument)
            self.watch()

    def completed(self):
        for checkpoint in range(1, self.next_id):
            if all(node.outcome.get(checkpoint) == "acked" for node in self.nodes):
                yield checkpoint


@given(data=st.data(), kind=st.sampled_from(["aligned", "timed", "unaligned"]))
@settings(max_examples=examples(100), deadline=None)
def test_a_completed_checkpoint_is_a_consistent_cut_of_the_job(data, kind):  # SPEC R6.0
    job = Job(data, lambda channels: BarrierHandler(channels, forced_aligned=channels[:1]), KINDS[kind])
    job.run()
    for node in job.nodes:
        assert not any(node.queues.values())
        assert (node.blocked, node.gate.pending) == (set(), ())
    for checkpoint in job.completed():
        for writer in job.nodes:
            for reader in writer.readers:
                snapshot = reader.snapshots[checkpoint]
                received = snapshot.state[writer.name] + snapshot.captured.get(writer.name, [])
                assert received == writer.cut[checkpoint].get(reader.name, [])
