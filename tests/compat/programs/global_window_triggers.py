"""A global window with a purging count trigger, and with a trigger that fires at a record "flush".

Modelled on: Apache Flink, Windows ("Triggers"), and pyflink's datastream/tests.

Prints:
    three> (1, 'a,b,flush')
    three> (1, 'c,flush,d')
    flush> (1, 'a,b,flush')
    flush> (1, 'a,b,flush,c,flush')
    flush> (1, 'd,e,flush')
"""

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import StreamExecutionEnvironment, Trigger, TriggerResult
from headrace.pyflink.datastream.state import ValueStateDescriptor
from headrace.pyflink.datastream.window import CountTrigger, GlobalWindow, GlobalWindows, PurgingTrigger


class FlushTrigger(Trigger[tuple, GlobalWindow]):
    count = ValueStateDescriptor("flushes", Types.INT())

    def on_element(self, element, timestamp: int, window: GlobalWindow, ctx: "Trigger.TriggerContext"):
        if element[1] != "flush":
            return TriggerResult.CONTINUE
        state = ctx.get_partitioned_state(self.count)
        flushes = (state.value() or 0) + 1
        state.update(flushes)
        return TriggerResult.FIRE_AND_PURGE if flushes > 1 else TriggerResult.FIRE

    def on_processing_time(self, time: int, window: GlobalWindow, ctx: "Trigger.TriggerContext"):
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: GlobalWindow, ctx: "Trigger.TriggerContext"):
        return TriggerResult.CONTINUE

    def on_merge(self, window: GlobalWindow, ctx: "Trigger.OnMergeContext"):
        pass

    def clear(self, window: GlobalWindow, ctx: "Trigger.TriggerContext"):
        pass


def join(left, right):
    return left[0], f"{left[1]},{right[1]}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
words = ["a", "b", "flush", "c", "flush", "d", "e", "flush"]
keyed = env.from_collection([(1, word) for word in words]).key_by(lambda x: x[0])
keyed.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(3))).reduce(join).print("three")
keyed.window(GlobalWindows.create()).trigger(FlushTrigger()).reduce(join).print("flush")
env.execute()
