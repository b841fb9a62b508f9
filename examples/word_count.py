"""Word count: the smallest stateful job.

    headrace run examples/word_count.py

Reads lines, splits them into words and keeps a running count for every word. Runs on a local Spark that is started for
it; give `-D headrace.spark.master=spark://host:7077` for a cluster.
"""

from headrace import StreamExecutionEnvironment

LINES = [
    "the gate at the head of a channel",
    "lets the water in and keeps the water out",
    "a barrier enters at the gate and cuts the stream",
]


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    (
        env.from_collection(LINES, type_info="string")
        .flat_map(lambda line: [(word, 1) for word in line.split()], output_type="word string, n bigint")
        .name("split")
        .key_by("word")
        .sum("n")
        .name("count")
        .print()
    )
    print(env.explain())
    env.execute("word count")


if __name__ == "__main__":
    main()
