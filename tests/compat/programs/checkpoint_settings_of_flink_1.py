"""Checkpoint settings, state backends and time characteristic of Flink 1.x.

Modelled on: pyflink-basic-introduction, checkpoint/checkpoint_config and state/state_backend.

Not run on PyFlink: names of Flink 1.x.

Prints:
    ok
"""

import tempfile

from headrace.pyflink.common import Duration, RestartStrategies, Time
from headrace.pyflink.datastream import (
    CheckpointingMode,
    EmbeddedRocksDBStateBackend,
    ExternalizedCheckpointCleanup,
    HashMapStateBackend,
    StreamExecutionEnvironment,
    TimeCharacteristic,
)
from headrace.pyflink.datastream.checkpoint_storage import FileSystemCheckpointStorage


def checkpoint_config_demo(directory):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.set_stream_time_characteristic(TimeCharacteristic.EventTime)
    env.enable_checkpointing(interval=5000, mode=CheckpointingMode.EXACTLY_ONCE)
    checkpoint_config = env.get_checkpoint_config()
    checkpoint_config.set_checkpoint_storage_dir(f"file://{directory}")
    checkpoint_config.set_checkpoint_storage(FileSystemCheckpointStorage(f"file://{directory}"))
    checkpoint_config.set_checkpoint_timeout(60000)
    checkpoint_config.set_max_concurrent_checkpoints(1)
    checkpoint_config.set_min_pause_between_checkpoints(1000)
    checkpoint_config.set_externalized_checkpoint_cleanup(ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION)
    checkpoint_config.enable_externalized_checkpoints(ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION)
    checkpoint_config.set_tolerable_checkpoint_failure_number(10)
    checkpoint_config.enable_unaligned_checkpoints()
    checkpoint_config.set_alignment_timeout(alignment_timeout=Duration.of_seconds(1))
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 10000))
    env.set_restart_strategy(RestartStrategies.failure_rate_restart(3, Time.minutes(5).to_milliseconds(), 10000))
    env.set_state_backend(HashMapStateBackend())
    env.set_state_backend(EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True))
    env.set_state_backend(HashMapStateBackend())
    env.from_collection(["ok"]).print()
    env.execute("checkpoint config")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        checkpoint_config_demo(directory)
