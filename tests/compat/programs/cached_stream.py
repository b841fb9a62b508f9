"""A cached stream, which a second job reads.

Modelled on: Apache Flink, operators overview ("Cache").

Fails:
    GraphError: [HR-8002] cache() at cached_stream.py:14: streams are not cached; write the stream with
    sink_to(FileSink(...)) and read the files in the second job, or build both results in one program
"""

from headrace.pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_runtime_mode(RuntimeExecutionMode.BATCH)
cached_data_stream = env.from_collection([1, 2, 3]).map(lambda x: x * 2).cache()
cached_data_stream.print()
env.execute()  # Execute and create cache.
cached_data_stream.print()  # Consume cached result.
env.execute()
