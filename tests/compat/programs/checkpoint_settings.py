"""Checkpoint settings of Flink 2.

Modelled on: Apache Flink, Checkpointing ("Enabling and configuring checkpointing").

Prints:
    1000 CheckpointingMode.EXACTLY_ONCE True
    500 60000 1000
    2 1
    ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION True
    True False
    True False
"""

from headrace.pyflink.common import Duration
from headrace.pyflink.datastream import (
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    StreamExecutionEnvironment,
)

env = StreamExecutionEnvironment.get_execution_environment()
# start a checkpoint every 1000 ms
env.enable_checkpointing(1000)
config = env.get_checkpoint_config()
config.set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE)
# make sure 500 ms of progress happen between checkpoints
config.set_min_pause_between_checkpoints(500)
# checkpoints have to complete within one minute, or are discarded
config.set_checkpoint_timeout(60000)
config.set_tolerable_checkpoint_failure_number(2)
config.set_max_concurrent_checkpoints(1)
config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
config.enable_unaligned_checkpoints()
config.set_aligned_checkpoint_timeout(Duration.of_seconds(1))

print(env.get_checkpoint_interval(), env.get_checkpointing_mode(), config.is_checkpointing_enabled())
print(config.get_min_pause_between_checkpoints(), config.get_checkpoint_timeout(), config.get_checkpoint_interval())
print(config.get_tolerable_checkpoint_failure_number(), config.get_max_concurrent_checkpoints())
print(config.get_externalized_checkpoint_retention(), config.is_externalized_checkpoints_enabled())
print(config.is_unaligned_checkpoints_enabled(), config.is_force_unaligned_checkpoints())
print(config.get_aligned_checkpoint_timeout() == Duration.of_seconds(1), config.is_fail_on_checkpointing_errors())
