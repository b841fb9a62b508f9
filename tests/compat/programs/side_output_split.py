"""A stream is split by side outputs; tags are made twice, once in the function and once outside.

Modelled on: pyflink-basic-introduction, split/side_output.

Prints, in any order:
    s1>  side-output-1 ('s1', 1)
    s1>  side-output-1 ('s1', 11)
    s2>  side-output-2 ('s2', 22)
    main> ('s3', 32)
    main> ('s3', 3)
    low> ('s1', 1)
    low> ('s3', 3)
    warn> s1 11
    warn> s2 22
    warn> s3 32
"""

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import KeyedProcessFunction, OutputTag, ProcessFunction, StreamExecutionEnvironment


class SensorSplit(ProcessFunction):
    def __init__(self):
        self.output_tag_s1 = OutputTag("side-output-s1", Types.STRING())
        self.output_tag_s2 = OutputTag("side-output-s2", Types.STRING())

    def process_element(self, value, ctx: "ProcessFunction.Context"):
        if value[0] == "s1":
            yield self.output_tag_s1, " side-output-1 " + str(value)
        elif value[0] == "s2":
            yield self.output_tag_s2, " side-output-2 " + str(value)
        else:
            yield value


class Warn(KeyedProcessFunction):
    def __init__(self, output_tag):
        self.output_tag = output_tag

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        if value[1] > 10:
            yield self.output_tag, f"{ctx.get_current_key()} {value[1]}"
        else:
            yield value


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
sensor_ds = env.from_collection([("s1", 1), ("s1", 11), ("s2", 22), ("s3", 32), ("s3", 3)])
output_tag_s1 = OutputTag("side-output-s1", Types.STRING())
output_tag_s2 = OutputTag("side-output-s2", Types.STRING())
process_stream = sensor_ds.process(SensorSplit())
process_stream.get_side_output(output_tag_s1).print("s1")
process_stream.get_side_output(output_tag_s2).print("s2")
process_stream.print("main")
warn_tag = OutputTag("warn")
warned = sensor_ds.key_by(lambda s: s[0]).process(Warn(warn_tag))
warned.print("low")
warned.get_side_output(warn_tag).print("warn")
env.execute()
