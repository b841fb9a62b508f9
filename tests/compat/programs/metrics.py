"""Counters, gauges, meters and distributions in user functions.

Modelled on: Apache Flink, Metrics (Python tabs).

Prints:
    ('a', 3)
    ('bb', 6)
"""

from headrace.pyflink.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment


class MyMapper(MapFunction):
    def __init__(self):
        self.counter = None
        self.value_to_expose = 0

    def open(self, runtime_context: RuntimeContext):
        group = runtime_context.get_metrics_group()
        self.counter = group.counter("my_counter")
        group.gauge("my_gauge", lambda: self.value_to_expose)
        self.meter = group.meter("my_meter", time_span_in_seconds=120)
        self.distribution = group.add_group("my_metrics").distribution("my_distribution")
        self.by_key = group.add_group("my_metrics_key", "my_metrics_value").counter("my_counter")

    def map(self, value: str):
        self.counter.inc()
        self.counter.inc(2)
        self.value_to_expose += 1
        self.meter.mark_event()
        self.distribution.update(len(value))
        self.by_key.dec()
        return value, self.counter.get_count()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection(["a", "bb"]).map(MyMapper()).print()
env.execute()
