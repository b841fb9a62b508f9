"""The execution config of an environment, and global job parameters that functions read.

Modelled on: Apache Flink, Execution configuration.

Prints:
    1 100
    True {'limit': '10'}
    (1, '10', (True, 1, 0, 0))
"""

from headrace.pyflink.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment


class WithContext(MapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.limit = runtime_context.get_job_parameter("limit", "none")
        self.where = (
            runtime_context.get_task_name() != "",
            runtime_context.get_number_of_parallel_subtasks(),
            runtime_context.get_index_of_this_subtask(),
            runtime_context.get_attempt_number(),
        )

    def map(self, value):
        return value, self.limit, self.where


env = StreamExecutionEnvironment.get_execution_environment()
execution_config = env.get_config()
execution_config.set_parallelism(1)
execution_config.set_max_parallelism(128)
execution_config.enable_object_reuse()
execution_config.set_auto_watermark_interval(100)
execution_config.set_use_snapshot_compression(True)
execution_config.set_task_cancellation_interval(10000)
execution_config.enable_auto_generated_uids()
execution_config.set_global_job_parameters({"limit": "10"})
print(execution_config.get_parallelism(), execution_config.get_auto_watermark_interval())
print(execution_config.is_object_reuse_enabled(), execution_config.get_global_job_parameters())
env.from_collection([1]).map(WithContext()).print()
env.execute()
