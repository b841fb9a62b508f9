"""A stream from a table of generated rows, and back to a table.

Modelled on: Apache Flink, Python DataStream API, operators ("Example"); streaming_word_count.

Fails:
    InvalidArgument: [HR-8002] pyflink.table.StreamTableEnvironment: Headrace has no Table API; use Spark's DataFrames
    and SQL: env.from_dataframe(df) reads one, stream.foreach_epoch(function) gives each checkpoint's records
    as one
"""

from headrace.pyflink.common.typeinfo import Types
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.table import StreamTableEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
t_env = StreamTableEnvironment.create(stream_execution_environment=env)
t_env.execute_sql("CREATE TABLE my_source (a INT, b VARCHAR) WITH ('connector' = 'datagen', 'number-of-rows' = '10')")
ds = t_env.to_append_stream(t_env.from_path("my_source"), Types.ROW([Types.INT(), Types.STRING()]))
ds.map(lambda i: (i[0] + 1, i[1])).print()
env.execute()
