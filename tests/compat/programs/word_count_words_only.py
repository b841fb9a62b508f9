"""Count words of a collection; every new total is printed.

Modelled on: Apache Flink, Flink operations playground for Python; pyflink user guide "quickstart".

Prints:
    ('to', 1)
    ('be', 1)
    ('or', 1)
    ('not', 1)
    ('to', 2)
    ('be', 2)
"""

from headrace.pyflink.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)

words = env.from_collection(["to be", "or not", "to be"])
words.flat_map(lambda line: line.split(" ")).map(lambda word: (word, 1)).key_by(lambda pair: pair[0]).sum(1).print()

env.execute("word_count")
