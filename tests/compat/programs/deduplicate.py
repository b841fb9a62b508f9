"""Only the first record of each id passes: a filter with keyed state that forgets after an hour.

Modelled on: Confluent and Ververica recipes "Deduplicating events"; pyflink FAQ.

Prints:
    +I[e1,ada,1.0]
    +I[e2,bob,2.5]
    +I[e3,ada,3.0]
"""

from headrace.pyflink.common import Row, Time, Types
from headrace.pyflink.datastream import FilterFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import StateTtlConfig, ValueStateDescriptor


class Deduplicate(FilterFunction):
    def open(self, runtime_context: RuntimeContext):
        descriptor = ValueStateDescriptor("seen", Types.BOOLEAN())
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.seen = runtime_context.get_state(descriptor)

    def filter(self, value):
        if self.seen.value():
            return False
        self.seen.update(True)
        return True


TYPE = Types.ROW_NAMED(["event_id", "user", "amount"], [Types.STRING(), Types.STRING(), Types.DOUBLE()])
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
events = env.from_collection(
    [Row("e1", "ada", 1.0), Row("e2", "bob", 2.5), Row("e1", "ada", 1.0), Row("e3", "ada", 3.0), Row("e2", "bob", 2.5)],
    type_info=TYPE,
)
events.key_by(lambda event: event["event_id"], key_type=Types.STRING()).filter(Deduplicate()).print()
env.execute("deduplicate")
