"""Names, uids, descriptions, chains and slot sharing groups, shown in the execution plan.

Modelled on: Apache Flink, operators overview ("Task chaining and resource groups", "Name and description").

Prints, in any order:
    Data Source 1 []
    Operator 2 ['REBALANCE']
    Operator 2 ['FORWARD']
    Operator 1 ['REBALANCE']
    Operator 1 ['FORWARD']
    Data Sink 1 ['FORWARD']
    6
    8
"""

import json

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import MemorySize, SlotSharingGroup, StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
ssg_a = SlotSharingGroup.builder("a").set_cpu_cores(1.0).set_task_heap_memory_mb(100).build()
ssg_b = SlotSharingGroup.builder("b").set_cpu_cores(0.5).set_task_heap_memory(MemorySize.of_mebi_bytes(100)).build()

some_stream = env.from_collection([1, 2, 3], type_info=Types.INT()).uid("numbers").name("numbers")
some_stream.filter(lambda x: x > 1).name("filter").set_description("x > 1").slot_sharing_group("a").map(
    lambda x: x + 1
).name("first").start_new_chain().slot_sharing_group(ssg_b).map(lambda x: x * 2).name(
    "second"
).disable_chaining().set_parallelism(1).set_max_parallelism(16).map(lambda x: x, output_type=Types.INT()).name(
    "third"
).uid("third").set_parallelism(1).set_buffer_timeout(5).print().name("printer").set_parallelism(1)
env.register_slot_sharing_group(ssg_a)

plan = json.loads(env.get_execution_plan())
for node in plan["nodes"]:
    before = [one["ship_strategy"] for one in node.get("predecessors", [])]
    print(node["pact"], node["parallelism"], before)
env.disable_operator_chaining()
env.execute("chains")
