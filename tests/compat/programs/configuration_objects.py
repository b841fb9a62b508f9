"""Options in a Configuration object: state backend, checkpoints, restarts, Python settings.

Modelled on: Apache Flink, State backends, Task failure recovery, Python configuration.

Prints:
    3 7
    1000 True
    ['execution.checkpointing.storage', 'python.execution-mode'] True
    1 64
    4
    2
    3
"""

from headrace.pyflink.common import Configuration
from headrace.pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment

config = Configuration()
config.set_string("state.backend.type", "hashmap")
config.set_string("execution.checkpointing.storage", "jobmanager")
config.set_string("restart-strategy.type", "fixed-delay")
config.set_string("restart-strategy.fixed-delay.attempts", "3")
config.set_string("restart-strategy.fixed-delay.delay", "10000 ms")
config.set_integer("python.fn-execution.bundle.size", 1000)
config.set_integer("python.fn-execution.bundle.time", 1000)
config.set_string("python.execution-mode", "process")
config.set_boolean("python.metric.enabled", True)
env = StreamExecutionEnvironment.get_execution_environment(config)
print(config.get_string("restart-strategy.fixed-delay.attempts", ""), config.get_integer("missing.key", 7))
print(config.get_integer("python.fn-execution.bundle.size", 0), config.contains_key("state.backend.type"))
print(sorted(config.key_set())[:2], config.get_boolean("python.metric.enabled", False))

more = Configuration()
more.set_string("state.storage.fs.write-buffer-size", "4096")
more.set_string("pipeline.max-parallelism", "64")
env.configure(more)
env.set_parallelism(1)
env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
print(env.get_parallelism(), env.get_max_parallelism())
env.from_collection([3, 1, 2]).map(lambda x: x + 1).print()
env.execute("configured")
