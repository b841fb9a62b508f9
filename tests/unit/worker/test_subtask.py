"""The subtask, stepped by hand: ends, slices, order, buffers and time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.api.functions import MapFunction, OutputTag, SinkFunction
from headrace.api.sources import Source, SourceReader
from headrace.api.watermarks import WatermarkStrategy
from headrace.checkpoint.types import Barrier
from headrace.errors import IllegalState
from headrace.job.status import Status
from headrace.records.batch import Batch
from headrace.records.frames import DRAIN, FrameKind
from headrace.records.types import Types
from headrace.worker.failures import OperatorFailure
from headrace.worker.inputs import DATA, decode
from rig import Services, data, event, frames_to, plan_of, relay, subtask, taken, work_off

END_OF_DATA, END_OF_PARTITION, END = FrameKind.END_OF_DATA, FrameKind.END_OF_PARTITION, FrameKind.END


def three_levels(env):
    """source x1 -> double x2 -> collect x1"""
    stream = env.from_collection([1, 2]).rebalance().map(lambda n: n * 2).set_parallelism(2).name("double")
    stream.rebalance().map(lambda n: n).name("last")._collect_into("out")


def middle(services=None, **conf):
    task = subtask(plan_of(three_levels, **conf), "double", 0, services)
    task.open()
    return task


def last(services):
    """One reader of two writers."""
    task = subtask(plan_of(three_levels), "last", 0, services)
    task.open()
    return task


# --- ends -----------------------------------------------------------------------------------------------------------


def test_the_ends_go_out_in_order():
    """END_OF_DATA behind the last record, END_OF_PARTITION behind it, then the task's own end in a row of its own."""
    task = middle()
    task.receive(data(1, 2, edge=0))
    task.receive(event(END_OF_DATA))
    work_off(task)
    assert task.status is Status.RUNNING
    task.receive(event(END_OF_PARTITION))
    work_off(task)
    assert task.status is Status.FINISHED
    rows = taken(task)
    assert frames_to(rows, 0) == [
        (FrameKind.PICKLE, [2, 4]),
        (FrameKind.WATERMARK, None),  # the last one
        (END_OF_DATA, None),
        (END_OF_PARTITION, None),
        (END, None),
    ]
    assert [f.kind for f in rows[-1][1]] == [END]
    assert rows[0][1][2].flags == DRAIN


def test_a_source_ends_when_it_has_no_more():
    task = subtask(plan_of(three_levels), "Collection", 0)
    task.open()
    assert task.step(1) == 1
    assert task.status is Status.RUNNING
    assert task.step(1) == 1
    assert task.status is Status.FINISHED
    rows = taken(task)
    kinds = [[kind for kind, _ in frames_to(rows, target)] for target in (0, 1)]
    for found in kinds:
        assert found[-3:] == [END_OF_DATA, END_OF_PARTITION, END]
    assert sum(found.count(FrameKind.PICKLE) for found in kinds) == 2


def test_the_physical_end_goes_to_every_task_of_the_next_level():
    """Also to tasks that this one has no channel to."""

    def program(env):
        env.from_sequence(1, 4).set_parallelism(2).rescale().map(str).set_parallelism(2)._collect_into("out")

    task = subtask(plan_of(program), "Sequence", 1)
    task.open()
    task.step(100)
    rows = taken(task)
    assert [f.writer for to, frames in rows for f in frames if to == 0] == [1]  # only the end of task 1
    assert frames_to(rows, 0) == [(END, None)]
    assert [kind for kind, _ in frames_to(rows, 1)][-1] is END


def test_a_subtask_is_finished_when_all_of_its_channels_are():
    services = Services()
    task = last(services)
    task.receive(data("a", edge=1, writer=0))
    task.receive(event(END_OF_DATA, 1, 0))
    task.receive(event(END_OF_PARTITION, 1, 0))
    task.receive(data("b", edge=1, writer=1))
    work_off(task)
    assert task.status is Status.RUNNING
    task.receive(event(END_OF_DATA, 1, 1))
    task.receive(event(END_OF_PARTITION, 1, 1))
    work_off(task)
    assert task.status is Status.FINISHED
    assert services.collected() == ["a", "b"]
    assert not task.has_work()


def test_all_input_ended_counts_the_physical_ends_of_every_writer():
    task = last(Services())
    assert not task.all_input_ended()
    task.receive(event(END, 0, 1))
    assert not task.all_input_ended()
    task.receive(event(END, 0, 0))
    assert task.all_input_ended()


@pytest.mark.parametrize("writer", [0, 7])
def test_a_physical_end_twice_or_from_nobody(writer):
    task = last(Services())
    task.receive(event(END, 0, 0))
    with pytest.raises(IllegalState, match=f"task {writer} of the level before sent its end twice, or does not exist"):
        task.receive(event(END, 0, writer))


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize(
    "late",
    [data(1), event(END_OF_DATA), event(END_OF_PARTITION), event(FrameKind.WATERMARK)],
    ids=["data", "end of data", "end", "watermark"],
)
def test_a_frame_behind_the_end_of_its_channel(stepped, late):
    task = middle()
    task.receive(event(END_OF_DATA))
    task.receive(event(END_OF_PARTITION))
    if stepped:
        work_off(task)
    with pytest.raises(IllegalState, match="a frame after the end of channel 0/0"):
        task.receive(late)


@pytest.mark.parametrize("late", [data(1), event(END_OF_DATA)], ids=["data", "end of data"])
def test_records_behind_the_end_of_data(late):
    task = middle()
    task.receive(event(END_OF_DATA))
    with pytest.raises(IllegalState, match="after the end of data of channel 0/0"):
        task.receive(late)


def test_events_may_follow_the_end_of_data():
    """Barriers flow between END_OF_DATA and END_OF_PARTITION (FLIP-147)."""
    task = middle()
    task.receive(event(END_OF_DATA))
    task.receive(event(FrameKind.CANCEL_MARKER, body=bytes(8)))
    work_off(task)
    assert task.status is Status.RUNNING


def test_a_channel_that_ends_without_the_end_of_its_data():
    task = middle()
    with pytest.raises(IllegalState, match="channel 0/0 ended without END_OF_DATA"):
        task.receive(event(END_OF_PARTITION))


def test_a_frame_of_an_unknown_channel():
    task = middle()
    with pytest.raises(IllegalState, match="a frame for channel 0/5, which this subtask does not have"):
        task.receive(data(1, writer=5))


class Ending(SinkFunction):
    log: list[object] = []  # noqa: RUF012 - shared on purpose: functions are copied into the subtask

    def invoke(self, value, context):
        Ending.log.append(value)

    def finish(self):
        Ending.log.append("finish")

    def close(self):
        Ending.log.append("close")


def test_operators_finish_behind_the_last_record_and_close_at_last():
    Ending.log.clear()
    task = subtask(plan_of(lambda env: env.from_collection([1, 2]).add_sink(Ending())), "Sink")
    task.open()
    task.step(100)
    assert Ending.log == [1, 2, "finish"]
    task.close()
    assert Ending.log == [1, 2, "finish", "close"]


# --- input ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_worked_off_in_slices():
    services = Services()
    task = last(services)
    task.receive(data(*range(10), edge=1))
    assert [task.step(4) for _ in range(4)] == [4, 4, 2, 0]
    assert services.collected() == list(range(10))
    assert task.records_in == 10


def test_slices_of_one_batch_are_not_mixed_with_the_next():
    services = Services()
    task = last(services)
    task.receive(data(1, 2, 3, edge=1, writer=0))
    task.receive(data(4, 5, edge=1, writer=1))
    while task.has_events():
        task.step(2)
    assert services.collected() == [1, 2, 3, 4, 5]


def test_queued_bytes_are_those_of_frames_that_wait():
    task = middle()
    assert task.queued_bytes == 0
    task.receive(data(1, 2))
    task.receive(event(END_OF_DATA, body=b"1234"))
    waiting = task.queued_bytes
    assert waiting == task.metrics().bytes_in > 4
    task.step(100)
    assert task.queued_bytes == 4
    task.step(100)
    assert task.queued_bytes == 0


def test_has_work():
    task = subtask(plan_of(three_levels), "double")
    assert not task.has_work()  # not opened
    task.open()
    assert not task.has_work()
    task.receive(data(1, 2))
    assert task.has_work()
    task.step(1)
    assert task.has_work()  # half a batch
    task.step(1)
    assert not task.has_work()


def test_a_source_always_has_work_until_it_has_finished():
    task = subtask(plan_of(three_levels), "Collection")
    task.open()
    assert task.has_work()
    task.step(100)
    assert not task.has_work()


def test_several_frames_in_one_row():
    services = Services()
    task = last(services)
    task.receive(data(1, edge=1) + data(2, edge=1) + event(END_OF_DATA, 1))
    work_off(task)
    assert services.collected() == [1, 2]


# --- buffers and time -----------------------------------------------------------------------------------------------


def test_records_wait_for_their_buffer():
    task = middle()
    task.receive(data(1))
    work_off(task)
    assert task.take() == []
    task.flush()
    assert frames_to(taken(task), 0) == [(FrameKind.PICKLE, [2])]


def test_buffer_timeout_0_lets_every_slice_go():
    task = middle(execution_buffer__timeout=0)
    task.receive(data(1, 2))
    task.step(1)
    assert frames_to(taken(task), 0) == [(FrameKind.PICKLE, [2])]
    task.step(1)
    assert frames_to(taken(task), 0) == [(FrameKind.PICKLE, [4])]
    assert task.next_deadline() is None


def test_a_positive_buffer_timeout_is_a_deadline():
    services = Services()
    services.time = 1000
    task = middle(services, execution_buffer__timeout=50)
    assert task.next_deadline() is None
    task.receive(data(1))
    task.receive(data(2))
    task.step(1)
    assert task.next_deadline() == 1050
    services.time = 1020
    task.step(1)
    assert task.next_deadline() == 1050  # of the oldest record
    task.on_time(1049)
    assert task.take() == []
    task.on_time(1050)
    assert frames_to(taken(task), 0) == [(FrameKind.PICKLE, [2, 4])]
    assert task.next_deadline() is None


def test_a_busy_subtask_keeps_its_buffer_timeout():
    services = Services()
    task = middle(services, execution_buffer__timeout=50)
    task.receive(data(1))
    task.receive(data(2))
    task.step(1)
    services.time = 60
    task.step(1)
    assert frames_to(taken(task), 0) == [(FrameKind.PICKLE, [2, 4])]


def test_no_buffer_timeout_waits_until_the_buffer_is_full():
    services = Services()
    task = middle(services, execution_buffer__timeout=-1)
    task.receive(data(1))
    work_off(task)
    services.time = 10**9
    task.on_time(services.time)
    task.flush_when_idle()
    assert task.take() == []
    assert task.next_deadline() is None


def test_a_record_after_a_pause_leaves_at_once_and_those_behind_it_are_gathered():
    services = Services(lockstep=False)
    services.time = 1000
    task = middle(services, execution_buffer__timeout=40)

    def arrives(value, time):
        services.time = time
        task.receive(data(value))
        work_off(task)
        task.flush_when_idle()

    arrives(1, 1000)
    assert frames_to(taken(task), 0) == [(FrameKind.PICKLE, [2])]
    assert task.next_deadline() is None
    arrives(2, 1003)
    arrives(3, 1007)
    assert task.take() == []
    assert task.next_deadline() == 1018  # nearly half of the timeout after the last row
    services.time = 1018
    task.on_time(1018)
    assert frames_to(taken(task), 0) == [(FrameKind.PICKLE, [4, 6])]
    arrives(4, 1036)
    assert frames_to(taken(task), 0) == [(FrameKind.PICKLE, [8])]


def test_records_are_gathered_for_at_most_45_ms():
    services = Services(lockstep=False)
    services.time = 1000
    task = middle(services, execution_buffer__timeout=10_000)
    for value in (1, 2):
        task.receive(data(value))
        work_off(task)
        task.flush_when_idle()
    assert frames_to(taken(task), 0) == [(FrameKind.PICKLE, [2])]
    assert task.next_deadline() == 1045


class Trickle(Source):
    """One record of `given` for each poll."""

    given: list[int] = []  # noqa: RUF012 - shared on purpose: the source is copied into the subtask
    polls = 0

    def splits(self, parallelism):
        return []

    def reader(self, context, splits):
        return TrickleReader()


class TrickleReader(SourceReader):
    def poll(self, max_records):
        Trickle.polls += 1
        return Batch.of_rows([Trickle.given.pop(0)], Types.PICKLED_BYTE_ARRAY()) if Trickle.given else None

    def snapshot(self):
        return []


def test_a_source_with_few_records_is_polled_once_in_a_while():
    services = Services(lockstep=False)
    services.time = 1000
    plan = plan_of(
        lambda env: env.from_source(Trickle()).rebalance().map(str).set_parallelism(2)._collect_into("out"),
        execution_buffer__timeout=40,
    )
    task = subtask(plan, "Source", services=services)
    task.open()
    Trickle.given[:] = [1, 2]
    assert [task.step(10), task.step(10)] == [2, 0]  # what it has is read at once, and joined
    assert not task.has_work()
    assert task.next_deadline() == 1008  # a multiple of 18 ms, nearly half of the timeout
    Trickle.given[:] = [3]
    Trickle.polls = 0
    services.time = 1007
    assert task.step(10) == 0
    assert Trickle.polls == 0
    services.time = 1008
    assert task.has_work()
    assert [task.step(10), task.step(10)] == [1, 0]
    services.time = 1026
    assert task.step(10) == 0  # it had nothing: the next record is read when it comes
    Trickle.given[:] = [4]
    services.time = 1027
    assert task.has_work()
    assert task.step(10) == 1


def trickling(services, timeout=40):
    plan = plan_of(
        lambda env: env.from_source(Trickle()).rescale().map(str).set_parallelism(2)._collect_into("out"),
        execution_buffer__timeout=timeout,
    )
    task = subtask(plan, "Source", services=services)
    task.open()
    return task


def test_what_a_source_has_gathered_leaves_at_once():
    services = Services(lockstep=False)
    services.time = 1000
    task = trickling(services)
    found = []
    for now in (1000, 1008, 1026):
        services.time = now
        Trickle.given[:] = [now]
        assert task.step(10) == 1
        task.flush_when_idle()
        rows = taken(task)
        found.append(len(frames_to(rows, 0)) + len(frames_to(rows, 1)))
    assert found == [1, 1, 1]


@pytest.mark.parametrize(("timeout", "polled"), [(0, 1), (40, 3)])
def test_a_few_records_are_joined_unless_each_is_to_leave_at_once(timeout, polled):
    task = trickling(Services(lockstep=False), timeout)
    Trickle.given[:] = [1, 2, 3]
    assert task.step(10) == polled


def test_a_reader_whose_polls_take_long_is_not_polled_again_before_its_records_are_out(monkeypatch):
    services = Services(lockstep=False)
    services.time = 1000
    task = trickling(services)
    poll = TrickleReader.poll

    def slow(reader, max_records):
        services.time += 3
        return poll(reader, max_records)

    monkeypatch.setattr(TrickleReader, "poll", slow)
    Trickle.given[:] = [1, 2, 3]
    assert [task.step(10), task.step(10)] == [1, 1]


def test_a_clock_that_is_set_back_stops_neither_the_source_nor_its_records():
    services = Services(lockstep=False)
    services.time = 10_000_000
    task = trickling(services)
    Trickle.given[:] = [1]
    assert task.step(10) == 1
    task.flush_when_idle()
    taken(task)
    services.time -= 3_600_000
    Trickle.given[:] = [2]
    assert task.has_work()
    assert task.step(10) == 1
    middle_task = middle(services, execution_buffer__timeout=100)
    for hour in (2, 1):
        services.time = hour * 3_600_000
        middle_task.receive(data(hour))
        work_off(middle_task)
        middle_task.flush_when_idle()
        assert frames_to(taken(middle_task), 0) == [(FrameKind.PICKLE, [2 * hour])]


def test_a_source_with_a_rate_is_read_once_in_a_pause_as_well():
    services = Services(lockstep=False)
    services.time = 1000

    def program(env):
        env.from_sequence(0, 10_000, rate=200).rescale().map(str).set_parallelism(2)._collect_into("out")

    task = subtask(plan_of(program, execution_buffer__timeout=100), "Sequence", services=services)
    task.open()
    rows = []
    while services.time < 2000:
        if not (task.has_work() and task.step(1000)):
            task.flush_when_idle()
            services.time = max(services.time + 1, task.next_deadline() or 0)
        rows += taken(task)
    assert 190 <= task.records_in <= 210
    assert len(rows) <= 2 * 1000 // 45 + 4  # to two targets


class Beside(Trickle):
    """Gives records to a side output only, one for each poll."""

    side_outputs = (OutputTag("beside", "bigint"),)

    def reader(self, context, splits):
        return BesideReader()


class BesideReader(TrickleReader):
    def poll(self, max_records):
        return None

    def take_side(self):
        return [(Beside.side_outputs[0], Trickle.given.pop(0))] if Trickle.given else []


def test_a_source_that_gives_only_side_outputs_is_read_at_once():
    plan = plan_of(lambda env: env.from_source(Beside()).rescale().map(str).set_parallelism(2)._collect_into("out"))
    task = subtask(plan, "Source", services=Services(lockstep=False))
    task.open()
    Trickle.given[:] = [1, 2, 3]
    assert [task.step(10) for _ in range(4)] == [1, 1, 1, 0]


class Scripted(Trickle):
    """Each poll calls the next of `script`."""

    script: list[Any] = []  # noqa: RUF012 - shared on purpose: the source is copied into the subtask
    type = Types.LONG()
    side_outputs = Beside.side_outputs

    def reader(self, context, splits):
        return ScriptedReader()


class ScriptedReader(TrickleReader):
    def __init__(self):
        self.rows, self.side = [], []

    def poll(self, max_records):
        return Scripted.script.pop(0)(self) if Scripted.script else None

    def take_side(self):
        side, self.side = self.side, []
        return side


def numbers(*values, stamped=False):
    def poll(reader):
        reader.rows[:] = values
        batch = Batch.of_rows(reader.rows, Types.LONG())
        batch.timestamps = np.array(values, np.int64) if stamped else None
        return batch

    return poll


def failing(_):
    raise ValueError("the source has failed")


def scripted(*polls, **options):
    def program(env):
        env.from_source(Scripted(), **options).rescale().map(str).set_parallelism(1)._collect_into("out")

    Scripted.script[:] = polls
    services = Services(lockstep=False)
    services.time = 1000
    task = subtask(plan_of(program), "Source", services=services)
    task.open()
    return task


def read_so_far(task):
    task.flush()
    frames = [frame for _, frames in taken(task) for frame in frames if frame.kind in DATA]
    return [row for frame in frames for row in decode(frame, Types.LONG()).rows()]


def test_a_reader_of_typed_records_may_use_its_list_again():
    task = scripted(numbers(1), numbers(2), numbers(3), numbers(*range(50)), numbers(*range(100)))
    while task.step(1000):
        pass
    assert read_so_far(task) == [1, 2, 3, *range(50), *range(100)]


def test_records_before_a_failure_of_the_source_are_out_before_it_and_no_barrier_is_between():
    task = scripted(numbers(1), failing)
    assert task.step(10) == 1
    assert read_so_far(task) == [1]
    for go_on in (lambda: task.trigger(Barrier(1, 1000)), lambda: task.step(10)):
        with pytest.raises(OperatorFailure) as caught:
            go_on()
        assert "the source has failed" in str(caught.value.__cause__)


def test_a_source_that_fails_at_its_end_has_not_finished():
    def failing_at_the_end(reader):
        reader.finished = True
        failing(reader)

    task = scripted(numbers(1), failing_at_the_end)
    assert task.step(10) == 1
    assert not task.data_finished
    with pytest.raises(OperatorFailure):
        task.step(10)


def test_batches_with_and_without_timestamps_stay_apart_and_in_order():
    task = scripted(*[numbers(n, stamped=n % 3 == 0) for n in range(20)])
    while task.step(100):
        pass
    assert read_so_far(task) == list(range(20))


def test_side_outputs_of_joined_polls_are_kept_and_the_last_poll_is_the_last():
    def beside(reader):
        reader.side.append((Beside.side_outputs[0], 7))
        return numbers(2)(reader)

    def last(reader):
        reader.finished = True
        return numbers(3)(reader)

    task = scripted(numbers(1), beside, last, failing)
    assert task.step(10) == 4
    assert task.records_in == 4


def test_a_source_with_watermarks_or_a_rate_is_polled_once_in_a_step():
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    assert scripted(numbers(1), numbers(2), watermark_strategy=strategy).step(10) == 1
    limited = scripted(numbers(1), numbers(2), rate=1000)
    assert limited.step(10) == 0
    limited._services.time += 100
    assert limited.step(10) == 1


def test_no_more_than_32_records_are_joined():
    assert scripted(*[numbers(n) for n in range(40)]).step(1000) == 32


def test_what_comes_after_the_gathered_records_waits_again():
    services = Services(lockstep=False)
    services.time = 1000
    task = trickling(services)
    Trickle.given[:] = [1]
    task.step(10)
    task.flush_when_idle()
    taken(task)
    services.time = 1001
    task.source.emit(Batch.of_rows([5], Types.PICKLED_BYTE_ARRAY()))  # as a timer would
    task.flush_when_idle()
    assert task.take() == []


def test_no_more_is_joined_than_a_step_may_read():
    task = trickling(Services(lockstep=False))
    Trickle.given[:] = [1, 2, 3]
    assert [task.step(2), task.step(2)] == [2, 1]


def test_an_operators_own_buffer_timeout_wins():
    def program(env):
        env.from_collection([1, 2]).set_buffer_timeout(0).rebalance().map(str).set_parallelism(2)._collect_into("out")

    task = subtask(plan_of(program, execution_buffer__timeout=1000), "Collection")
    task.open()
    task.step(1)
    rows = taken(task)
    assert [kind for kind, _ in frames_to(rows, 0) + frames_to(rows, 1)] == [FrameKind.PICKLE]
    assert task.next_deadline() is None


# --- failures -------------------------------------------------------------------------------------------------------


class Rich(MapFunction):
    log: list[str] = []  # noqa: RUF012 - shared on purpose: functions are copied into the subtask

    def __init__(self, name):
        self.name = name

    def open(self, runtime_context):
        Rich.log.append(f"open {self.name} {runtime_context.get_task_name_with_subtasks()}")

    def map(self, value):
        return value

    def close(self):
        Rich.log.append(f"close {self.name}")
        if self.name == "first":
            raise RuntimeError("close failed")


def test_operators_are_opened_from_the_end_and_all_are_closed():
    def program(env):
        stream = env.from_collection([1]).map(Rich("first")).name("one").map(Rich("second")).name("two")
        stream._collect_into("out")

    Rich.log.clear()
    task = subtask(plan_of(program), "one")
    task.open()
    assert Rich.log == ["open second two (1/1)#0", "open first one (1/1)#0"]
    with pytest.raises(OperatorFailure) as caught:
        task.close()
    assert Rich.log[2:] == ["close first", "close second"]
    assert caught.value.operator == "one"


# --- relays ---------------------------------------------------------------------------------------------------------


def skipping(env):
    """The source feeds the first map and, past it, the last operator."""
    source = env.from_collection([1, 2]).name("source")
    far = source.rebalance().map(lambda n: n).set_parallelism(2).name("far")
    far.rebalance().union(source.rebalance()).map(lambda n: n).set_parallelism(3).name("end")._collect_into("out")


def test_a_relay_passes_rows_on_unchanged_and_in_order():
    plan = plan_of(skipping)
    (level,) = [n for n, slots in enumerate(plan.layout.levels) if any(s.relay for s in slots)]
    index = next(i for i, s in enumerate(plan.layout.levels[level]) if s.relay and s.subtask == 2)
    task = relay(plan, level, index)
    task.open()
    rows = [
        data(1, 2, edge=1),
        event(END_OF_DATA, 1),
        event(FrameKind.BARRIER, 1, body=b"x" * 100),
        event(END_OF_PARTITION, 1),
    ]
    for row in rows:
        task.receive(row)
    passed = task.take()
    target = plan.layout.index(level + 1, plan.layout.levels[level][index].vertex, 2)
    assert [(to, b"".join(pieces)) for to, pieces in passed] == [(target, row) for row in rows]
    assert task.status is Status.RUNNING
    assert not task.has_work()
    assert task.next_deadline() is None
    task.receive(event(END, 0, 0))
    assert task.status is Status.FINISHED
    assert [(to, [f.kind for f in frames]) for to, frames in taken(task)] == [
        (n, [END]) for n in range(plan.width(level + 1))
    ]
    assert task.bytes_in == sum(map(len, rows))


def test_a_relay_ends_with_the_last_task_before_it():
    plan = plan_of(skipping)
    (level,) = [n for n, slots in enumerate(plan.layout.levels) if any(s.relay for s in slots)]
    task = relay(plan, level, len(plan.layout.levels[level]) - 1)
    task.open()
    for writer in range(plan.width(level - 1)):
        assert not task.all_input_ended()
        assert task.status is Status.RUNNING
        task.receive(event(END, 0, writer))
    assert task.all_input_ended()
    assert task.status is Status.FINISHED
