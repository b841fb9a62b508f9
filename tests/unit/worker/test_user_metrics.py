"""Metrics of a user's function: whatever a function measures, the worker sends plain numbers, and nothing else ends its stream."""

from __future__ import annotations

import logging
from decimal import Decimal

import numpy as np
import pytest

from headrace.api.metrics import Metric, MetricGroup, MetricReader
from headrace.control.messages import Metrics, decode_from_worker, encode


def sent(register):
    """What the driver gets of the metrics that `register` makes."""
    metrics: dict[str, Metric] = {}
    register(MetricGroup("op", metrics, lambda: 0))
    return decode_from_worker(encode(Metrics(user=MetricReader().read(metrics)))).user


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (np.int64(7), 7.0),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (Decimal("1.5"), 1.5),
        (1 << 70, 2.0**70),
    ],
)
def test_every_kind_of_number_travels(value, number):
    assert sent(lambda group: group.gauge("g", lambda: value)) == {"op.g": number}
    assert sent(lambda group: group.counter("c").inc(value)) == {"op.c": number}


@pytest.mark.parametrize("value", ["text", "7", b"7", None, [1, 2], 10**400, object()])
def test_what_is_no_number_is_left_out(value):
    assert sent(lambda group: group.gauge("g", lambda: value)) == {}


def test_a_name_that_utf8_cannot_carry_is_escaped():
    assert sent(lambda group: group.counter("bad \udcff").inc()) == {"op.bad \\udcff": 1.0}


def test_a_metric_that_cannot_be_read_is_reported_once_and_does_not_hide_others(caplog):
    metrics: dict[str, Metric] = {}
    group = MetricGroup("op", metrics, lambda: 0)
    group.gauge("broken", lambda: 1 / 0)
    group.meter("no span", 0).mark_event()
    group.gauge("tensor", Tensor)
    group.counter("seen").inc()
    reader = MetricReader()
    with caplog.at_level(logging.WARNING):
        assert [reader.read(metrics) for _ in range(3)] == [{"op.seen": 1.0}] * 3
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "metric 'op.broken' cannot be read",
        "metric 'op.no span' cannot be read",
        "metric 'op.tensor' cannot be read",
    ]


class Tensor:
    def __float__(self):
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


def test_a_metric_for_each_key_does_not_grow_without_end(caplog):
    """A message above 64 MiB would end the stream, and the driver keeps the values of every subtask."""
    metrics: dict[str, Metric] = {}
    group = MetricGroup("op", metrics, lambda: 0)
    for number in range(5000):
        group.counter(f"user {number}").inc()
    reader = MetricReader()
    with caplog.at_level(logging.WARNING):
        found = [reader.read(metrics) for _ in range(2)]
    assert [len(one) for one in found] == [1000, 1000]
    (record,) = caplog.records
    assert "has 5000 metrics, such as 'op.user 4999', of which 1000 are shown" in record.getMessage()
