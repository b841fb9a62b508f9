"""Windows by count, tumbling and sliding, with a WindowFunction.

Modelled on: Apache Flink, pyflink/examples/datastream/windowing/tumbling_count_window.

Prints, in any order:
    tumbling> (hi,4)
    reduced> (9,hi)
    reduced> (12,hello)
    tumbling> (hello,6)
    tumbling> (hello,12)
    sliding> (hi,9)
    sliding> (hello,12)
    sliding> (hello,16)
"""

from collections.abc import Iterable

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import StreamExecutionEnvironment, WindowFunction
from headrace.pyflink.datastream.window import CountWindow


class SumWindowFunction(WindowFunction[tuple, tuple, str, CountWindow]):
    def apply(self, key: str, window: CountWindow, inputs: Iterable[tuple]):
        result = 0
        for i in inputs:
            result += i[0]
        return [(key, result)]


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    data_stream = env.from_collection(
        [(1, "hi"), (2, "hello"), (3, "hi"), (4, "hello"), (5, "hi"), (6, "hello"), (6, "hello")],
        type_info=Types.TUPLE([Types.INT(), Types.STRING()]),
    )
    keyed = data_stream.key_by(lambda x: x[1], key_type=Types.STRING())
    keyed.count_window(2).apply(SumWindowFunction(), Types.TUPLE([Types.STRING(), Types.INT()])).print("tumbling")
    keyed.count_window(3, 1).apply(SumWindowFunction(), Types.TUPLE([Types.STRING(), Types.INT()])).print("sliding")
    keyed.count_window(size=3).reduce(lambda a, b: (a[0] + b[0], b[1])).print("reduced")
    env.execute()
