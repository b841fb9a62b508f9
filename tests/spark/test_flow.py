"""How records move: promptly, in order, while the input is silent, and bounded towards the driver."""

import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from spark_kit import wait_until

from headrace import KeyedProcessFunction, MapFunction, SinkFunction, SourceFunction
from headrace.errors import JobCancelled
from headrace.job.status import JobStatus

SEQUENCE = "writer bigint, seq bigint"


class OneThenSilence(SourceFunction):
    """Emits its records and then waits until the job is over."""

    def __init__(self, *records):
        self.records = records
        self.over = False

    def run(self, ctx):
        for record in self.records:
            ctx.collect(record)
        while not self.over:
            time.sleep(0.02)

    def cancel(self):
        self.over = True


def first_record(stream):
    """The first record, which does not come at all if it is stuck; cancels the job."""
    with stream.execute_and_collect() as results:
        return next(results)


def wait_until_steady(job, subtask, figure, what):
    """Wait until three reports of a subtask, one a second, have the same figure."""
    reports = []

    def steady():
        report = job.metrics().get(subtask)
        if report is not None and (not reports or report is not reports[-1]):
            reports.append(report)
        return len(reports) > 2 and len(set(map(figure, reports[-3:]))) == 1

    wait_until(steady, what)


# --- promptness -------------------------------------------------------------------------------------------------------


def test_a_lone_record_is_not_stuck(make_env, workers):
    """Spark hands row k over when row k+1 is there; without the filler this test waits for ever."""
    stream = (
        make_env(2).add_source(OneThenSilence("lone")).key_by(lambda s: s).map(str.upper).rebalance().map(str.title)
    )
    assert first_record(stream) == "Lone"


def test_a_lone_typed_record_is_not_stuck(make_env, workers):
    source = make_env(2).add_source(OneThenSilence((7, "x")), type_info="a bigint, b string")
    record = first_record(source.key_by("a").map(lambda r: (r.a + 1, r.b), output_type="a bigint, b string"))
    assert tuple(record) == (8, "x")


def test_a_buffer_leaves_at_its_timeout_while_its_subtask_is_busy(make_env):
    """Input that never pauses: the buffer is neither full nor is the queue empty, only its time is over."""
    env = make_env(1, {"execution.buffer-timeout": 50, "headrace.buffer.size": "64 mb"})  # it takes hours to be full
    assert first_record(env.from_datagen(lambda n: n, rate=2000).rebalance().map(lambda n: n)) == 0


class Alarm(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 300)

    def on_timer(self, timestamp, ctx):
        yield ("rang", ctx.get_current_key())


def test_timers_fire_while_the_input_is_silent(make_env, workers):
    stream = make_env(2).add_source(OneThenSilence("k")).key_by(lambda s: s).process(Alarm())
    assert first_record(stream) == ("rang", "k")


def test_an_idle_job_uses_next_to_no_cpu(make_env, workers):
    """Sources without anything to emit once spun in their loop."""
    client_env = make_env(2)
    client_env.add_source(OneThenSilence()).rebalance().map(lambda x: x).print()
    client = client_env.execute_async()
    assert client.job.wait_running(120)
    time.sleep(0.5)
    processes = workers.running(client.job)
    assert len(processes) == 3
    before = [sum(p.cpu_times()[:2]) for p in processes]
    time.sleep(2)
    used = [sum(p.cpu_times()[:2]) - b for p, b in zip(processes, before, strict=True)]
    client.cancel()
    assert max(used) < 0.5, used  # 25 % of a core


# --- sources ----------------------------------------------------------------------------------------------------------


class ThreadNames(SourceFunction):
    def run(self, ctx):
        with ctx.get_checkpoint_lock():
            ctx.collect(threading.current_thread().name)

    def cancel(self):
        pass


def test_a_source_function_runs_in_its_own_thread(make_env):
    names = make_env().add_source(ThreadNames()).map(lambda s: (s, threading.current_thread().name))
    [(source, operator)] = names.execute_and_collect()
    assert source == "headrace-source"
    assert operator == "MainThread"


class Unstoppable(SourceFunction):
    """Ignores cancel(), as user code may."""

    def run(self, ctx):
        ctx.collect(1)
        while True:
            time.sleep(0.1)

    def cancel(self):
        pass


def test_a_source_that_ignores_cancel_does_not_outlive_its_job(make_env, workers):
    env = make_env()
    env.add_source(Unstoppable()).print()
    client = env.execute_async()
    assert client.job.wait_running(120)
    assert client.cancel() is JobStatus.CANCELED


# --- order ------------------------------------------------------------------------------------------------------------


class Stamp:
    """Numbers the records of a subtask, chained to the source: (writer, its own sequence number)."""

    def open(self, runtime_context):
        self.writer, self.next = runtime_context.get_index_of_this_subtask(), 0

    def __call__(self, batch):
        numbers = np.arange(self.next, self.next + batch.num_rows)
        self.next += batch.num_rows
        columns = [pa.array(np.full(batch.num_rows, self.writer)), pa.array(numbers)]
        return pa.RecordBatch.from_arrays(columns, names=["writer", "seq"])


class InOrder:
    """Sequence numbers of each writer must grow; gives the number of records of each batch."""

    def __init__(self):
        self.last = {}

    def __call__(self, batch):
        writers, numbers = batch.column(0).to_numpy(), batch.column(1).to_numpy()
        for writer in np.unique(writers).tolist():
            own = numbers[writers == writer]
            if own[0] <= self.last.get(writer, -1) or (np.diff(own) <= 0).any():
                raise AssertionError(f"writer {writer}: {own[:5]} after {self.last.get(writer)}")
            self.last[writer] = int(own[-1])
        return pa.RecordBatch.from_arrays([pa.array([batch.num_rows])], names=["n"])


def by_key(numbers):
    return numbers.key_by("seq")


def by_turns(numbers):
    return numbers.rebalance()


def through_relays(numbers):
    far = numbers.key_by("seq").filter(lambda r: False).rebalance().filter(lambda r: False)
    return far.union(numbers.rebalance())


@pytest.mark.parametrize("spread", [by_key, by_turns, through_relays])
def test_the_order_of_each_channel_is_kept(make_env, spread):
    count = 300_000  # about eighty full buffers in each channel
    numbers = (
        make_env(2, {"headrace.buffer.size": "16 kb"})
        .from_sequence(1, count)
        .map_batches(Stamp(), output_type=SEQUENCE)
    )
    checked = spread(numbers).map_batches(InOrder(), output_type="n bigint")
    assert sum(row.n for row in checked.execute_and_collect()) == count


# --- the driver's side ------------------------------------------------------------------------------------------------


def test_print_comes_out_of_the_driver(make_env, capsys):
    env = make_env(2)
    env.from_collection(["a", "b", "c"]).rebalance().map(str.upper).print()
    env.from_collection(["x"]).map(str.upper).set_parallelism(1).print().set_parallelism(1)
    env.from_collection(["y"]).map(str.upper).set_parallelism(1).print("tag").set_parallelism(1)
    env.execute()
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line for line in lines if line[0] in "12") == sorted(
        next(prefix + letter for prefix in ("1> ", "2> ") if prefix + letter in lines) for letter in "ABC"
    )
    assert "X" in lines
    assert "tag> Y" in lines


def test_print_is_bounded(make_env, capsys):
    env = make_env(1, {"headrace.print.max-lines-per-second": 20})
    env.from_sequence(1, 20_000).print()
    env.execute()
    lines = capsys.readouterr().out.splitlines()
    assert 20 <= len(lines) < 2000


def test_collecting_holds_the_job_back(make_env, workers):
    """A driver that takes nothing out must not gather everything: at most so many batches are under way."""
    env = make_env(1, {"headrace.collect.max-unconfirmed": 4})
    with env.from_datagen(lambda n: n).rebalance().map(lambda n: n).execute_and_collect() as results:
        assert next(results) == 0
        wait_until(lambda: results._batches.qsize() == 4, "as many batches as may be under way")
        wait_until_steady(results.job, (1, 0), lambda report: report.records_in, "a job that is held back")
        assert results._batches.qsize() <= 4


class SlowSink(SinkFunction):
    def invoke(self, value, context):
        time.sleep(0.05)


def test_a_slow_sink_holds_its_source_back(make_env, workers):
    """What a subtask has read but not worked off counts too: once it gathered everything while it was slow."""
    limit = 1 << 20
    options = {
        "headrace.input.queue-size": limit,
        "headrace.input.queue-time": "30 d",  # no limit in time
        "headrace.buffer.size": "64 kb",
    }
    env = make_env(1, options)
    env.from_datagen(lambda n: b"x" * 1000).rebalance().map(len).add_sink(SlowSink())
    client = env.execute_async()
    assert client.job.wait_running(120)
    full = lambda: (1, 0) in client.job.metrics() and client.job.metrics()[1, 0].queued_bytes > limit / 2  # noqa: E731
    wait_until(full, "a full queue")
    # Spark does not take it either; the sink takes less than 4 MiB a minute.
    wait_until_steady(client.job, (0, 0), lambda report: report.bytes_out >> 22, "a source that is held back")
    queued = client.job.metrics()[1, 0].queued_bytes
    assert limit / 2 < queued <= 2 * limit  # half in its queue, half in the subtask's, and a row on the way in each
    client.cancel()


def test_a_slow_sink_reads_ahead_what_it_takes_in_a_short_time(make_env, workers):
    """A barrier of an aligned checkpoint waits behind it."""
    env = make_env(1, {"headrace.buffer.size": "16 kb"})
    env.from_datagen(lambda n: b"x" * 1000).rebalance().map(len).add_sink(SlowSink())
    client = env.execute_async()
    assert client.job.wait_running(120)
    wait_until_steady(client.job, (0, 0), lambda report: report.bytes_out >> 20, "a source that is held back")
    wait_until(lambda: 0 < client.job.metrics()[1, 0].queued_bytes <= 300 << 10, "little that waits in the worker")
    client.cancel()


def test_metrics_come_every_second_even_from_a_busy_function(make_env, workers):
    class Slow(MapFunction):
        def map(self, value):
            time.sleep(6)
            return value

    env = make_env()
    env.from_sequence(1, 3).rebalance().map(Slow()).start_new_chain().print()
    client = env.execute_async()
    assert client.job.wait_running(120)
    wait_until(lambda: len(client.job.metrics()) == 2)
    first = client.job.metrics()[1, 0]
    later = wait_until(lambda: client.job.metrics()[1, 0] is not first and client.job.metrics()[1, 0])
    assert later.resident_bytes > 10_000_000
    client.cancel()


def test_metrics_count_records(make_env):
    env = make_env(2)
    env.from_sequence(1, 5000).map(lambda x: x).key_by(lambda x: x).map(lambda x: x).print()
    env._configuration.set("headrace.print.max-lines-per-second", 1)
    client = env.execute_async()
    client.wait(120)
    metrics = client.job.metrics()
    assert sum(metrics[0, i].records_out for i in range(2)) == 5000
    assert sum(metrics[1, i].records_in for i in range(2)) == 5000
    assert all(m.bytes_out > 0 for (level, _), m in metrics.items() if level == 0)


# --- execute_async and cancel -----------------------------------------------------------------------------------------


def test_cancel(make_env, workers):
    env = make_env(2)
    env.add_source(OneThenSilence(1)).rebalance().map(lambda x: x).print()
    client = env.execute_async("to be cancelled")
    assert client.job.wait_running(120)
    assert client.get_job_status() is JobStatus.RUNNING
    assert client.cancel() is JobStatus.CANCELED
    assert not workers.running(client.job)
    with pytest.raises(JobCancelled, match="'to be cancelled' was cancelled"):
        client.wait()


@pytest.mark.parametrize("delay", [0, 0.3, 0.8])
def test_cancel_while_the_job_starts(make_env, workers, delay):
    """Spark forgets a cancel that comes before the job: the job then ran for ever."""
    env = make_env(4)
    env.add_source(OneThenSilence(1)).rebalance().map(lambda x: x).rebalance().map(lambda x: x).print()
    client = env.execute_async()
    time.sleep(delay)
    assert client.cancel(20) is JobStatus.CANCELED


class WhenTold(SourceFunction):
    """Emits a path once something is there; then silence."""

    def __init__(self, path):
        self.path, self.over = path, False

    def run(self, ctx):
        while not self.over and not Path(self.path).exists():
            time.sleep(0.02)
        ctx.collect(self.path)
        while not self.over:
            time.sleep(0.02)

    def cancel(self):
        self.over = True


def hold_the_interpreter(path):
    """C code that never lets another thread run."""
    Path(f"{path}.held").touch()
    return re.match(r"(a+)+$", "a" * 60 + "b")


def test_cancel_ends_a_worker_whose_interpreter_is_held(make_env, workers, tmp_path):
    env = make_env()
    go = tmp_path / "go"
    env.add_source(WhenTold(str(go))).rebalance().map(hold_the_interpreter).print()
    client = env.execute_async()
    assert client.job.wait_running(120)  # a worker that is held before it has said so would never say so
    go.touch()
    wait_until(lambda: Path(f"{go}.held").exists(), "the worker that is held")
    assert client.cancel(60) is JobStatus.CANCELED


def test_an_interrupted_collect_cancels_the_job(make_env, workers):
    results = make_env().add_source(OneThenSilence(1)).map(lambda x: x).execute_and_collect()
    assert next(results) == 1
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert results.job.status is JobStatus.CANCELED


def test_a_job_cancelled_in_spark_is_cancelled(make_env, spark, workers):
    env = make_env()
    env.add_source(OneThenSilence(1)).print()
    client = env.execute_async()
    assert client.job.wait_running(120)
    spark.sparkContext.cancelAllJobs()
    with pytest.raises(JobCancelled, match="cancelled in Spark"):
        client.wait(120)
    assert client.get_job_status() is JobStatus.CANCELED


def test_cancelling_a_job_that_has_finished_changes_nothing(make_env):
    env = make_env()
    env.from_collection([1]).print()
    client = env.execute_async()
    client.wait(120)
    assert client.cancel() is JobStatus.FINISHED


def test_two_jobs_at_the_same_time(make_env):
    envs = [make_env(2), make_env(2)]
    results = [env.from_sequence(1, 100).rebalance().map(lambda x: x).execute_and_collect() for env in envs]
    assert [sorted(r) for r in results] == [list(range(1, 101))] * 2
