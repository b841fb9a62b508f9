"""Spans of OpenTelemetry, with its API in place of a real exporter. SPEC R10.3"""

from types import SimpleNamespace

from headrace.driver.spans import Spans, find_tracer
from rest_kit import FakeJob


class Tracer:
    def __init__(self):
        self.spans = []

    def start_span(self, name, start_time, attributes):
        span = SimpleNamespace(name=name, start=start_time, attributes=attributes)
        span.end = lambda end_time: setattr(span, "ended", end_time)
        self.spans.append(span)
        return span


def test_a_checkpoint():
    tracer = Tracer()
    Spans(tracer, "j", "totals").checkpoint(FakeJob().stats.snapshot().history[0])
    (span,) = tracer.spans
    assert (span.name, span.start, span.ended) == ("Checkpoint", 1000 * 10**6, 1260 * 10**6)
    assert span.attributes["jobName"] == "totals"
    assert (span.attributes["checkpointId"], span.attributes["fullSize"]) == (1, 300)
    assert span.attributes["checkpointStatus"] == "COMPLETED"
    assert all(type(value) in (str, int, bool) for value in span.attributes.values())


def test_the_start_of_an_attempt():
    tracer, story = Tracer(), FakeJob().machine.story
    attempt = story.attempts[-1]
    attempt.restored_checkpoint = 7
    Spans(tracer, "j", "totals").initialization(attempt, story.phases(attempt))
    (span,) = tracer.spans
    assert (span.name, span.start, span.ended) == ("JobInitialization", 1000 * 10**6, 1050 * 10**6)
    assert span.attributes == {
        "jobId": "j",
        "jobName": "totals",
        "attempt": 0,
        "checkpointId": 7,
        "scheduleMs": 30,
        "restoreMs": 20,
    }


def test_without_the_api_there_is_no_tracer(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert find_tracer() is None
