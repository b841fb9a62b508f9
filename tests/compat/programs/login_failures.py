"""Two failed logins of a user within two seconds; list state of tuples, text files of Flink 1.x.

Modelled on: PyFlink-UserBehaviorAnalysis, LoginFailDetect.

Not run on PyFlink: names of Flink 1.x.

Prints:
    fail> user 23064: failed at 101 and 102
"""

import tempfile
from pathlib import Path
from typing import Any

from headrace.pyflink.common import Duration, Types
from headrace.pyflink.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from headrace.pyflink.datastream import (
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    TimeCharacteristic,
)
from headrace.pyflink.datastream.state import ListStateDescriptor

EVENT = Types.TUPLE([Types.INT(), Types.STRING(), Types.STRING(), Types.LONG()])


def split_input(row):
    line = row.split(",")
    yield int(line[0]), line[1], line[2], int(line[3])


class RowTimestampAssigner(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value[3] * 1000


class LoginFailWarning(KeyedProcessFunction):
    def __init__(self):
        self.fails = None

    def open(self, runtime_context: RuntimeContext):
        self.fails = runtime_context.get_list_state(ListStateDescriptor("login-fail-list", EVENT))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        if value[2] == "fail":
            first = next(iter(self.fails.get()), None)
            if first is not None:
                if value[3] < first[3] + 2:
                    yield f"user {first[0]}: failed at {first[3]} and {value[3]}"
                self.fails.clear()
            self.fails.add(value)
        else:
            self.fails.clear()


def login_fail_warning(path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.set_stream_time_characteristic(TimeCharacteristic.EventTime)
    input_stream = env.read_text_file(path)
    login_event_stream = input_stream.flat_map(split_input, output_type=EVENT)
    watermark_strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(3)).with_timestamp_assigner(
        RowTimestampAssigner()
    )
    login_event_stream.assign_timestamps_and_watermarks(watermark_strategy).key_by(lambda x: x[0]).process(
        LoginFailWarning()
    ).print("fail")
    env.execute("login fail detect job")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "LoginLog.csv")
        file.write_text(
            "5402,83.1.1.1,success,100\n23064,66.2.2.2,fail,101\n23064,66.2.2.2,fail,102\n"
            "5402,83.1.1.1,fail,103\n5402,83.1.1.1,fail,109\n23064,66.2.2.2,success,110\n"
        )
        login_fail_warning(str(file))
