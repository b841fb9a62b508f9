"""A driver that races with others, as a process."""

from __future__ import annotations

from storage_jobs import JOB, take

from headrace.storage.layout import JobLayout
from headrace.storage.log import JobLog, SupersededError
from headrace.storage.remote import open_store


def drive(options, directory, number, rounds, start, results):
    """A driver that takes over the same jobs as others do, and then completes a checkpoint: which ones it could."""
    store, completed = open_store(options), []
    for round_ in range(rounds):
        layout = JobLayout.of(f"{directory}/{round_}", JOB)
        start.wait()
        try:
            log = JobLog.start(store, layout, "race", clock=lambda: 1000)
        except SupersededError:
            log = None
        start.wait()
        if log is not None:
            try:
                log.complete(take(store, 1 + number, log.attempt(0), layout))
            except SupersededError:
                continue
            completed.append(round_)
    results.put(completed)
