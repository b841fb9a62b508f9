"""Keyed value state: the average of every two values of a key. Prints (1, 4) and (1, 5).

headrace run examples/count_window_average.py
"""

from headrace import DataStream, FlatMapFunction, StreamExecutionEnvironment, Types, ValueStateDescriptor

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


class CountWindowAverage(FlatMapFunction):
    """Keeps (count, sum) for each key; at two values it emits their average and starts again."""

    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("average", PAIR, default=(0, 0)))

    def flat_map(self, value):
        count, total = self.sum.value()
        count, total = count + 1, total + value[1]
        if count >= 2:
            self.sum.clear()
            yield value[0], total // count
        else:
            self.sum.update((count, total))


def build(env: StreamExecutionEnvironment) -> DataStream:
    values = env.from_elements((1, 3), (1, 5), (1, 7), (1, 4), (1, 2), type_info=PAIR)
    return values.key_by(lambda value: value[0]).flat_map(CountWindowAverage(), output_type=PAIR)


if __name__ == "__main__":
    environment = StreamExecutionEnvironment.get_execution_environment()
    build(environment).print()
    environment.execute("count window average")
