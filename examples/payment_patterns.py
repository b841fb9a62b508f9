"""Patterns in the order of events, by rules that change while the job runs.

    headrace run examples/payment_patterns.py

A rule has a name and a sequence of kinds; it is found where these kinds follow each other directly in the history of one
account. Payments come out of order, so they wait until the watermark has passed them and are then looked at in the order of
their times. Rules are a stream too: a rule counts for the payments that happened after it.
"""

from datetime import timedelta

from headrace import (
    DataStream,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)

PAYMENT = "account string, kind string, at bigint"
RULE = "name string, kinds array<string>, since bigint"
FOUND = "rule string, account string, started bigint, ended bigint"
RULES = MapStateDescriptor("rules", "string", "kinds array<string>, since bigint")
LONGEST = 10  # payments that a rule may look at

ALL_RULES = [("probe", ["small", "large"], 0), ("drain", ["large", "large", "close"], 50)]
PAYMENTS = [
    ("ann", "small", 10),
    ("ann", "large", 30),  # the next one happened before it
    ("ann", "medium", 20),
    ("bob", "small", 25),
    ("bob", "large", 40),
    ("ann", "large", 60),
    ("ann", "close", 80),
    ("ann", "large", 70),
]


class Find(KeyedBroadcastProcessFunction):
    """Keeps what waits for the watermark, and the last payments of each account."""

    def open(self, runtime_context):
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting", "bigint", "array<string>"))
        self.last = runtime_context.get_list_state(ListStateDescriptor("last", "kind string, at bigint"))

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value.name, (value.kinds, value.since))

    def process_element(self, value, ctx):
        self.waiting.put(value.at, [*(self.waiting.get(value.at) or []), value.kind])
        ctx.timer_service().register_event_time_timer(value.at)

    def on_timer(self, timestamp, ctx):
        rules = [(name, list(rule[0]), rule[1]) for name, rule in ctx.get_broadcast_state(RULES).items()]
        last = [tuple(payment) for payment in self.last.get()]
        for kind in sorted(self.waiting.get(timestamp)):
            last = [*last, (kind, timestamp)][-LONGEST:]
            for name, kinds, since in sorted(rules):
                newest = last[-len(kinds) :]
                if [payment[0] for payment in newest] == kinds and newest[0][1] >= since:
                    yield name, ctx.get_current_key(), newest[0][1], timestamp
        self.waiting.remove(timestamp)
        self.last.update(last)


def build(env: StreamExecutionEnvironment, payments=PAYMENTS, rules=ALL_RULES) -> DataStream:
    """The patterns found."""
    late = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=20)).with_timestamp_assigner("at")
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("since")
    history = env.from_collection(payments, type_info=PAYMENT).assign_timestamps_and_watermarks(late)
    # The clock of both inputs together decides, so a payment waits for the rules of its time.
    changes = env.from_collection(rules, type_info=RULE).assign_timestamps_and_watermarks(in_order)
    return (
        history.key_by("account").connect(changes.broadcast(RULES)).process(Find(), output_type=FOUND).uid("patterns")
    )


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env).print()
    env.execute("payment patterns")


if __name__ == "__main__":
    main()
