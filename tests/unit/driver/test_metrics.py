"""The counters of workers, which the job's thread adds and other threads read."""

from headrace.control.messages import Metrics
from headrace.driver.metrics_history import MetricsHistory


def test_a_thread_that_reads_while_a_worker_is_added_finds_its_first_counters_or_none():
    history, read = MetricsHistory(), []

    class ReadAfterEachStep(dict):
        """What another thread sees after each change."""

        def setdefault(self, key, default=None):
            found = super().setdefault(key, default)
            read.append((history.newest(), history.measures()))
            return found

        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            read.append((history.newest(), history.measures()))

    history._seen = ReadAfterEachStep()
    history.add((0, 0), 1000, Metrics(records_in=10))
    newest, measures = read[0]
    assert newest[0, 0].records_in == measures[0, 0].metrics.records_in == 10
