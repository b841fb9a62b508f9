"""sum, min, max, min_by and max_by of a keyed stream of named rows, which are made from objects.

Modelled on: pyflink-basic-introduction, aggreagate/key_by_aggregate.

Prints, in any order:
    +I[s1,1,1]
    +I[s1,11,11]
    +I[s2,22,2]
    +I[s1,10,10]
    +I[s2,2,2]
    min> +I[s1,1,1]
    min> +I[s1,1,1]
    min> +I[s2,22,2]
    min> +I[s1,1,1]
    min> +I[s2,2,2]
    min_by> +I[s1,1,1]
    min_by> +I[s1,1,1]
    min_by> +I[s2,22,2]
    min_by> +I[s1,1,1]
    min_by> +I[s2,2,2]
    max_by> +I[s1,1,1]
    max> +I[s1,1,1]
    max> +I[s1,11,1]
    max> +I[s2,22,2]
    max> +I[s1,11,1]
    max> +I[s2,22,2]
    sum> +I[s1,1,1]
    sum> +I[s1,12,1]
    sum> +I[s2,22,2]
    sum> +I[s1,22,1]
    sum> +I[s2,24,2]
    max_by> +I[s1,11,11]
    max_by> +I[s2,22,2]
    max_by> +I[s1,11,11]
    max_by> +I[s2,22,2]
"""

from headrace.pyflink.common.typeinfo import Types
from headrace.pyflink.datastream import StreamExecutionEnvironment


class WaterSensor:
    def __init__(self, id, vc, ts):
        self.id = id
        self.vc = vc
        self.ts = ts


def key_by_aggr_demo():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    data = [
        WaterSensor("s1", 1, 1),
        WaterSensor("s1", 11, 11),
        WaterSensor("s2", 22, 2),
        WaterSensor("s1", 10, 10),
        WaterSensor("s2", 2, 2),
    ]
    sensor_ds = env.from_collection(
        data, type_info=Types.ROW_NAMED(["id", "vc", "ts"], [Types.STRING(), Types.INT(), Types.INT()])
    )
    keyed_stream = sensor_ds.key_by(lambda sensor: sensor.id)
    keyed_stream.print()
    keyed_stream.sum("vc").print("sum")
    keyed_stream.min("vc").print("min")
    keyed_stream.max("vc").print("max")
    keyed_stream.min_by("vc").print("min_by")
    keyed_stream.max_by("vc").print("max_by")
    env.execute("KeyedStream Example")


if __name__ == "__main__":
    key_by_aggr_demo()
