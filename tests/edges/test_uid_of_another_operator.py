"""A uid that another kind of operator has now: state that it cannot take is refused, and not lost (SPEC R8.5)."""

import pytest
from edge_kit import Count, EpochLedgerSink, LedgerSink, counted, key_of

from headrace import CheckpointedFunction, ListStateDescriptor, MapFunction
from headrace.connectors.files import FileSink

DROP = {"execution.state-recovery.ignore-unclaimed-state": "true"}


def counting(into):
    def program(numbers):
        into(numbers.key_by(key_of).process(Count()).uid("count"))

    return program


def files(cluster):
    return lambda counts: counts.sink_to(FileSink(str(cluster.output), "text")).uid("files")


def job_with_prepared_output(cluster, into=None):
    """A job whose checkpoint has 40 records that were prepared and not committed; its driver is gone."""
    job = cluster.start(counting(into or files(cluster)))
    job.feed(40)
    job.checkpoint_without_notification()
    job.kill_driver()
    return cluster.checkpoint_files()


@pytest.mark.parametrize(
    ("into", "name"),
    [
        (lambda counts: counts.print().uid("files"), "'Print' ("),
        (lambda counts: counts.map(lambda text: text).uid("files").print(), "'Map' ("),
        (lambda counts: counts.add_sink(print).uid("files"), "'Sink' ("),
    ],
)
def test_prepared_output_is_not_lost_to_an_operator_that_commits_nothing(cluster, into, name):  # SPEC R8.5, R9.3
    stored = job_with_prepared_output(cluster)
    job = cluster.resume(counting(into))
    assert job.wait() == "FAILED"
    assert "'Sink' (uid files) has left output that a sink of kind 'files' has prepared and may not have" in job.error
    assert name in job.error
    assert "give the uid back" in job.error
    assert "execution.state-recovery.ignore-unclaimed-state=true" in job.error
    assert (cluster.visible(), cluster.checkpoint_files()) == ([], stored)
    job = cluster.resume(counting(files(cluster)))
    assert cluster.comes_to_show(counted(range(40))), job.error
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


@pytest.mark.parametrize("sink", [LedgerSink, EpochLedgerSink])
def test_prepared_output_goes_to_no_sink_of_another_kind(cluster, ledger, sink):  # SPEC R8.5, R9.3
    stored = job_with_prepared_output(cluster)
    job = cluster.resume(counting(lambda counts: counts.sink_to(sink(ledger.name)).uid("files")))
    assert job.wait() == "FAILED"
    assert "a sink of kind 'files' has prepared" in job.error
    assert f"a sink of kind '{sink.__name__}' (its output_kind)" in job.error
    assert (ledger.commits, cluster.visible(), cluster.checkpoint_files()) == ([], [], stored)


def test_a_sink_that_was_renamed_says_that_it_is_of_the_same_kind(cluster, ledger):  # SPEC R8.5
    class RenamedSink(LedgerSink):
        output_kind = "LedgerSink"

    job_with_prepared_output(cluster, lambda counts: counts.sink_to(LedgerSink(ledger.name)).uid("files"))
    job = cluster.resume(counting(lambda counts: counts.sink_to(RenamedSink(ledger.name)).uid("files")))
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert sorted(ledger.visible.elements()) == sorted(counted(range(400)))


def test_a_sink_of_the_same_kind_commits_to_the_old_place(cluster, tmp_path):  # SPEC R8.5
    job_with_prepared_output(cluster)
    other = tmp_path / "other"
    job = cluster.resume(counting(lambda counts: counts.sink_to(FileSink(str(other), "text")).uid("files")))
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(40))
    assert sum(len(part.read_text().splitlines()) for part in other.glob("part-*")) == 360


@pytest.mark.parametrize("sink", [None, EpochLedgerSink])
def test_prepared_output_is_dropped_if_that_is_allowed(cluster, ledger, sink):  # SPEC R8.5
    def into(counts):
        (counts.print() if sink is None else counts.sink_to(sink(ledger.name))).uid("files")

    job_with_prepared_output(cluster)
    job = cluster.resume(counting(into), DROP)
    assert job.running(), job.error
    assert job.position == 40
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == []
    assert sorted(ledger.visible.elements()) == ([] if sink is None else sorted(counted(range(40, 400))))


def test_a_sink_that_has_prepared_nothing_may_be_replaced(cluster):  # SPEC R8.5
    job = cluster.start(counting(files(cluster)))
    job.checkpoint()
    job.kill_driver()
    job = cluster.resume(counting(lambda counts: counts.print().uid("files")))
    job.feed_rest()
    assert job.wait() == "FINISHED"


# --- keyed state --------------------------------------------------------------------------------------------------------


def test_keyed_state_is_not_lost_to_an_operator_without_keys(cluster):  # SPEC R8.5
    job = cluster.start()
    job.feed(40)
    job.checkpoint()
    assert cluster.comes_to_show(counted(range(40)))
    job.kill_driver()
    stored = cluster.checkpoint_files()

    def program(numbers):
        files(cluster)(numbers.map(lambda n: f"{n} is not counted").uid("count"))

    job = cluster.resume(program)
    assert job.wait() == "FAILED"
    assert "'Keyed Process' (uid count) has left keyed state, and its place has 'Map' (" in job.error
    assert (cluster.visible(), cluster.checkpoint_files()) == (counted(range(40)), stored)
    job = cluster.resume(program, DROP)
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert len(cluster.visible()) == 400


def test_a_keyed_operator_without_state_may_become_one_without_keys(cluster):  # SPEC R8.5
    def program(numbers):
        files(cluster)(numbers.key_by(key_of).map(str).uid("text"))

    def without_keys(numbers):
        files(cluster)(numbers.map(str).uid("text"))

    job = cluster.start(program)
    job.feed(40)
    job.checkpoint()
    job.kill_driver()
    job = cluster.resume(without_keys)
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert len(cluster.visible()) == 400


# --- operator state -----------------------------------------------------------------------------------------------------


class Numbered(MapFunction, CheckpointedFunction):
    """Numbers the records, in operator state."""

    def initialize_state(self, context):
        self._state = context.get_operator_state_store().get_list_state(ListStateDescriptor("next"))
        self._next = sum(self._state.get())

    def snapshot_state(self, context):
        self._state.update([self._next])

    def map(self, value):
        self._next += 1
        return f"{value} has number {self._next}"


def test_state_that_a_function_declares_is_carried_on_by_one_that_does_not(cluster):  # SPEC R1.10, R8.5
    def program(function):
        return lambda numbers: files(cluster)(numbers.map(function).uid("numbered"))

    job = cluster.start(program(Numbered()))
    for function in (lambda n: f"{n} has none", Numbered()):
        job.feed(40)
        job.checkpoint()
        job.kill_driver()
        job = cluster.resume(program(function))
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible()[80] == "80 has number 41"


def test_splits_go_to_no_operator_that_is_not_a_source(cluster):  # SPEC R8.5, R9.4
    job = cluster.start()
    job.feed(40)
    job.checkpoint()
    job.kill_driver()

    def program(numbers):
        source = numbers.uid("others")
        counting(files(cluster))(source.map(lambda n: n).uid("numbers"))

    job = cluster.resume(program)
    assert job.wait() == "FAILED"
    assert "(uid numbers) has left splits of a source, and its place has 'Map' (" in job.error


# --- sources that the checkpoint has not seen ---------------------------------------------------------------------------


def test_a_new_source_in_front_of_an_old_operator_reads_from_its_start(cluster):  # SPEC R8.5, R9.4
    def program(numbers):
        files(cluster)(numbers.map(str).uid("text"))

    def with_a_new_source(numbers):
        program(numbers.uid("others"))

    job = cluster.start(program)
    job.feed(40)
    job.checkpoint()
    assert cluster.comes_to_show([str(n) for n in range(40)])
    job.kill_driver()
    job = cluster.resume(with_a_new_source, DROP)
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == sorted([str(n) for n in (*range(40), *range(400))], key=int)
