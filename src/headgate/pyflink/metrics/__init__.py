"""`pyflink.metrics`."""

from headgate.api.metrics import Counter as Counter
from headgate.api.metrics import Distribution as Distribution
from headgate.api.metrics import Meter as Meter
from headgate.api.metrics import Metric as Metric
from headgate.api.metrics import MetricGroup as MetricGroup
