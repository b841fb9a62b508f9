"""W11 on Quix Streams: Kafka, a Python function with keyed state, Kafka, exactly once. Runs until it is killed."""
import argparse

from quixstreams import Application


def add(value, state):
    total = state.get("total", 0) + value["v"]
    state.set("total", total)
    return {"k": value["k"], "total": total}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--broker", required=True)
    p.add_argument("--input", required=True)
    p.add_argument("--output", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--interval-ms", type=int, default=1000)
    a = p.parse_args()
    app = Application(
        broker_address=a.broker, consumer_group=a.output, auto_offset_reset="earliest",
        processing_guarantee="exactly-once", commit_interval=a.interval_ms / 1000,
        state_dir=a.work, topic_create_timeout=30, loglevel="ERROR")
    numbers = app.topic(a.input, key_deserializer="str", value_deserializer="json")
    totals = app.topic(a.output, key_serializer="str", value_serializer="json")
    app.dataframe(numbers).apply(add, stateful=True).to_topic(totals)
    app.run()


if __name__ == "__main__":
    main()
