"""A reduce over objects of a class of the program.

Modelled on: pyflink-basic-introduction, aggreagate/reduce_aggregate.

Prints:
    WaterSensor(id=s1, vc=1, ts=1)
    WaterSensor(id=s1, vc=12, ts=11)
    WaterSensor(id=s2, vc=22, ts=2)
"""

from headrace.pyflink.datastream import StreamExecutionEnvironment


class WaterSensor:
    def __init__(self, id, vc, ts):
        self.id = id
        self.vc = vc
        self.ts = ts

    def __str__(self):
        return f"WaterSensor(id={self.id}, vc={self.vc}, ts={self.ts})"

    __repr__ = __str__


def reduce_key_by_aggr_demo():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    sensor_ds = env.from_collection([WaterSensor("s1", 1, 1), WaterSensor("s1", 11, 11), WaterSensor("s2", 22, 2)])
    keyed_stream = sensor_ds.key_by(lambda sensor: sensor.id)
    keyed_stream.reduce(lambda t1, t2: WaterSensor(t1.id, t1.vc + t2.vc, t2.ts)).print()
    env.execute("ReduceAggregate Example")


if __name__ == "__main__":
    reduce_key_by_aggr_demo()
