"""A job with the changelog state backend switched on.

Modelled on: pyflink-basic-introduction, checkpoint/save_point; Apache Flink, State backends ("Enabling changelog").

Prints:
    ok
"""

from headrace.pyflink.datastream import CheckpointingMode, StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.enable_changelog_state_backend(True)
env.enable_checkpointing(5000, CheckpointingMode.EXACTLY_ONCE)
env.from_collection(["ok"]).uid("flatmap-uid").name("flatmap-name").print()
env.execute()
