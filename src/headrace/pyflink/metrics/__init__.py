"""`pyflink.metrics`."""

from headrace.api.metrics import Counter as Counter
from headrace.api.metrics import Distribution as Distribution
from headrace.api.metrics import Meter as Meter
from headrace.api.metrics import Metric as Metric
from headrace.api.metrics import MetricGroup as MetricGroup
