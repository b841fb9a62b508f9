"""Rows to a table of MySQL.

Modelled on: Apache Flink, JDBC connector (Python tab); pyflink-basic-introduction, sink/sink_mysql.

Fails:
    ModuleNotFoundError: pyflink.datastream.connectors.jdbc is not in Headrace: write with Spark:
    stream.foreach_epoch(lambda df, n: df.write....save())
"""

from headrace.pyflink.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
type_info = Types.ROW([Types.INT(), Types.STRING(), Types.STRING(), Types.INT()])
env.from_collection(
    [(101, "Stream Processing with Apache Flink", "Hueske, Kalavri", 2019)], type_info=type_info
).add_sink(
    JdbcSink.sink(
        "insert into books (id, title, authors, year) values (?, ?, ?, ?)",
        type_info,
        JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url("jdbc:mysql://localhost/books").build(),
        JdbcExecutionOptions.builder().with_batch_interval_ms(1000).with_batch_size(200).build(),
    )
)
env.execute()
