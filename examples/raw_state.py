"""Raw state: a function that writes its counts as bytes of its own format, for each key group.

headrace run examples/raw_state.py
"""

import struct
from collections import Counter, defaultdict

from headrace import CheckpointedFunction, KeyedProcessFunction, StreamExecutionEnvironment

COUNT = struct.Struct(">QH")  # the count, and the length of the word that follows


class CountWords(KeyedProcessFunction, CheckpointedFunction):
    """Counts words in a plain dict; `processed` counts the records of this subtask."""

    def __init__(self):
        self.counts = Counter()
        self.processed = 0

    def process_element(self, word, ctx):
        self.processed += 1
        self.counts[word] += 1
        yield word, self.counts[word]

    def snapshot_state(self, context):
        output = context.get_raw_keyed_state_output()
        groups = defaultdict(list)
        for word in self.counts:
            groups[output.key_group_of(word)].append(word)
        for group, words in groups.items():
            output.start_new_key_group(group)
            for word in words:
                data = word.encode()
                output.write(COUNT.pack(self.counts[word], len(data)) + data)
        totals = context.get_raw_operator_state_output()
        totals.start_new_stream()
        totals.write(self.processed.to_bytes(8, "big"))

    def initialize_state(self, context):
        for _key_group, stream in context.get_raw_keyed_state_inputs():
            while head := stream.read(COUNT.size):
                count, length = COUNT.unpack(head)
                self.counts[stream.read(length).decode()] = count
        for stream in context.get_raw_operator_state_inputs():
            self.processed += int.from_bytes(stream.read(), "big")


def build(env: StreamExecutionEnvironment, words=("to", "be", "or", "not", "to", "be")):
    return env.from_collection(list(words)).key_by(lambda word: word).process(CountWords())


if __name__ == "__main__":
    environment = StreamExecutionEnvironment.get_execution_environment()
    build(environment).print()
    environment.execute("raw state")
