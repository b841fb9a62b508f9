"""A job is started in the background, and waited for.

Modelled on: Apache Flink, Python FAQ ("Wait for jobs to finish").

Prints:
    0
    1
    2
    True
    True
    [2, 4, 6]
    ['a', 'b']
"""

from headrace.pyflink.datastream import StreamExecutionEnvironment

stream_execution_env = StreamExecutionEnvironment.get_execution_environment()
stream_execution_env.set_parallelism(1)
stream_execution_env.from_collection(range(3)).print()
job_client = stream_execution_env.execute_async("My DataStream Job")
result = job_client.get_job_execution_result().result()
print(str(job_client.get_job_id()) == str(result.get_job_id()))
print(result.get_net_runtime() >= 0)

with stream_execution_env.from_collection([1, 2, 3]).execute_and_collect("collected") as results:
    print([value * 2 for value in results])
print(stream_execution_env.from_collection(["a", "b", "c"]).execute_and_collect(limit=2))
