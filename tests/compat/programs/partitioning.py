"""All ways to spread records over subtasks.

Modelled on: Apache Flink, operators overview ("Physical partitioning"); pyflink-basic-introduction, partition.

Prints, in any order:
    custom:1> (2, 'a')
    custom:1> (4, 'a')
    class:1> 2
    class:1> 4
    custom:2> (3, 'b')
    forward> 9
    class:2> 3
    b
    aa
    aa
    b
    b
    aa
    broadcast> 6
"""

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import Partitioner, StreamExecutionEnvironment


class MyPartitioner(Partitioner):
    def partition(self, key, num_partitions):
        return key % num_partitions


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
data_stream = env.from_collection(collection=[(2, "a"), (4, "a"), (3, "b")])
data_stream.partition_custom(lambda key, num_partition: key % num_partition, lambda x: x[0]).print("custom")
data_stream.partition_custom(MyPartitioner(), lambda x: x[0]).map(lambda x: x[0], Types.INT()).print("class")
for spread in [data_stream.shuffle(), data_stream.rescale(), data_stream.rebalance()]:
    spread.map(lambda x: x[1]).set_parallelism(2).key_by(lambda x: x).reduce(lambda a, b: a + b).set_parallelism(
        1
    ).filter(lambda text: text in ("aa", "b")).print().set_parallelism(1)
data_stream.broadcast().map(lambda x: 1).set_parallelism(2).key_by(lambda x: 0).sum().filter(
    lambda n: n == 6
).set_parallelism(1).print("broadcast").set_parallelism(1)
data_stream.forward().map(lambda x: x[0]).set_parallelism(1).key_by(lambda x: 0).sum().set_parallelism(1).filter(
    lambda n: n == 9
).set_parallelism(1).print("forward").set_parallelism(1)
env.execute()
