"""The program whose savepoints are kept here. Never change it: what it wrote must be readable for ever.

    python tests/compat/golden_program.py DIRECTORY      takes the savepoints of this version

Every kind of state: value, list, map, reducing and aggregating, typed and untyped, with a time to live, timers, split,
union and broadcast state, splits of a source, transactions of a sink.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from headrace import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CheckpointedFunction,
    Configuration,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueStateDescriptor,
)
from headrace.connectors.files import FileSink
from headrace.job_client import SavepointFormat

COUNT, KEYS = 4000, 8
RULES = MapStateDescriptor("rules", "bigint", "string")
TTL = StateTtlConfig.new_builder(Time.days(36500)).build()


class Count(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


class Everything(KeyedProcessFunction):
    """All states must agree at every record; a restore that loses one of them fails here."""

    def open(self, runtime_context):
        fading = ValueStateDescriptor("fading", "bigint")
        fading.enable_time_to_live(TTL)
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))
        self.fading = runtime_context.get_state(fading)
        self.pair = runtime_context.get_state(ValueStateDescriptor("pair", "word string, n bigint"))
        self.untyped = runtime_context.get_state(ValueStateDescriptor("untyped"))
        self.ids = runtime_context.get_list_state(ListStateDescriptor("ids", "bigint"))
        self.by_hundred = runtime_context.get_map_state(MapStateDescriptor("by hundred", "string", "bigint"))
        self.total = runtime_context.get_reducing_state(
            ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG())
        )
        self.number = runtime_context.get_aggregating_state(AggregatingStateDescriptor("number", Count(), Types.LONG()))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.fading.update((self.fading.value() or 0) + 1)
        pair = self.pair.value()
        self.pair.update(("w", (pair[1] if pair else 0) + 1))
        self.untyped.update({"n": (self.untyped.value() or {"n": 0})["n"] + 1})
        self.ids.add(value)
        hundred = f"h{value // 100}"
        self.by_hundred.put(hundred, (self.by_hundred.get(hundred) or 0) + 1)
        self.total.add(value)
        self.number.add(value)
        ids = list(self.ids.get())
        states = [self.fading.value(), self.pair.value()[1], self.untyped.value()["n"], len(ids)]
        states += [sum(self.by_hundred.values()), self.number.get()]
        assert states == [count] * 6, (count, states)
        assert self.total.get() == sum(ids)
        if count == 1:
            ctx.timer_service().register_processing_time_timer(4_000_000_000_000)  # in the year 2096
        yield value, count


class Seen(FlatMapFunction, CheckpointedFunction):
    def initialize_state(self, context):
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split", "bigint"))
        self.union = store.get_union_list_state(ListStateDescriptor("union"))
        self.seen = sum(self.split.get())
        self.mark = sorted(self.union.get())

    def snapshot_state(self, context):
        self.split.update([self.seen])
        self.union.update(["mark"])

    def flat_map(self, value):
        self.seen += 1
        yield [*value, len(self.mark)]


class Ruled(KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield [*value, sorted(text for _, text in ctx.get_broadcast_state(RULES).items())]

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value, f"rule {value}")
        return []


def build(env, directory, rate=None):
    numbers = env.from_datagen(lambda n: n, count=COUNT, rate=rate, type_info="bigint").uid("numbers")
    rules = env.from_collection([1, 2, 3], type_info="bigint").uid("rules").broadcast(RULES)
    counted = numbers.key_by(lambda n: n % KEYS).process(Everything()).uid("everything")
    seen = counted.rebalance().flat_map(Seen()).uid("seen")
    ruled = seen.key_by(lambda row: row[0] % KEYS).connect(rules).process(Ruled()).uid("ruled")
    ruled.sink_to(FileSink(f"{directory}/out", "json")).uid("files")


def main():
    target = Path(sys.argv[1])
    for backend in ("hashmap", "rocksdb"):
        for format in SavepointFormat:
            with tempfile.TemporaryDirectory() as directory:
                conf = {"state.backend.type": backend, "execution.checkpointing.dir": f"file://{directory}/checkpoints"}
                env = StreamExecutionEnvironment.get_execution_environment(Configuration(conf)).set_parallelism(2)
                env.enable_checkpointing(200)
                build(env, directory, rate=200)
                client = env.execute_async("golden")
                client.job.wait_running(60)
                for _ in range(3):
                    client.trigger_checkpoint(timeout=60)
                path = client.stop_with_savepoint(savepoint_directory=f"file://{directory}/savepoints", format=format)
                place = target / f"{backend}-{format.value.lower()}"
                shutil.copytree(path.removeprefix("file://"), place)


if __name__ == "__main__":
    main()
