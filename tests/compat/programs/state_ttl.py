"""State with a time to live, with every setting.

Modelled on: Apache Flink, Working with state ("State time-to-live"); pyflink-basic-introduction, state/keyed_state_ttl.

Prints:
    key=s1, state=None [] []
    key=s1, state=None [5] [5]
    key=s1, state=15 [5, 15] [5, 15]
    key=s2, state=None [] []
    key=s2, state=11 [11] [11]
"""

from headrace.pyflink.common import Duration, Types
from headrace.pyflink.common.time import Time
from headrace.pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)


class LastHighLevel(KeyedProcessFunction):
    def __init__(self):
        self.last_vc_value = None

    def open(self, runtime_context: RuntimeContext):
        ttl_config = (
            StateTtlConfig.new_builder(Time.hours(10))
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
            .build()
        )
        state_descriptor = ValueStateDescriptor("last_vc_state", Types.INT())
        state_descriptor.enable_time_to_live(ttl_config)
        self.last_vc_value = runtime_context.get_state(state_descriptor=state_descriptor)

        ttl_config = (
            StateTtlConfig.new_builder(Time.hours(1))
            .set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
            .set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
            .cleanup_full_snapshot()
            .cleanup_incrementally(10, True)
            .cleanup_in_rocksdb_compact_filter(1000, Duration.of_hours(1))
            .build()
        )
        seen = ListStateDescriptor("seen", Types.INT())
        seen.enable_time_to_live(ttl_config)
        self.seen = runtime_context.get_list_state(seen)
        by_level = MapStateDescriptor("by_level", Types.INT(), Types.STRING())
        by_level.enable_time_to_live(
            StateTtlConfig.new_builder(Time.seconds(3600)).disable_cleanup_in_background().build()
        )
        self.by_level = runtime_context.get_map_state(by_level)

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        yield f"key={value[0]}, state={self.last_vc_value.value()} {list(self.seen.get())} {sorted(self.by_level.keys())}"
        self.seen.add(value[1])
        self.by_level.put(value[1], value[0])
        if value[1] > 10:
            self.last_vc_value.update(value[1])


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection([("s1", 5), ("s1", 15), ("s1", 7), ("s2", 11), ("s2", 1)]).key_by(lambda sensor: sensor[0]).process(
    LastHighLevel()
).print()
env.execute("StateTTL")
