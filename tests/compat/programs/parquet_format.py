"""Parquet files are written and read by row type.

Modelled on: Apache Flink, Parquet format and FileSystem connector (Python tabs).

Not run on PyFlink: it needs the jars of Hadoop and Parquet.

Prints:
    +I[0.5,a]
    +I[2.0,b]
"""

import tempfile

from headrace.pyflink.common import Configuration, Row, Types, WatermarkStrategy
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.connectors.file_system import FileSink, FileSource
from headrace.pyflink.datastream.formats.parquet import ParquetBulkWriters, ParquetColumnarRowInputFormat
from headrace.pyflink.table import DataTypes


def parquet_demo(directory):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    row_type = DataTypes.ROW(
        [
            DataTypes.FIELD("string", DataTypes.STRING()),
            DataTypes.FIELD("number", DataTypes.DOUBLE()),
            DataTypes.FIELD("int_array", DataTypes.ARRAY(DataTypes.INT())),
        ]
    )
    row_type_info = Types.ROW_NAMED(
        ["string", "number", "int_array"], [Types.STRING(), Types.DOUBLE(), Types.LIST(Types.INT())]
    )
    ds = env.from_collection([Row("a", 0.5, [1, 2]), Row("b", 2.0, [])], type_info=row_type_info)
    sink = FileSink.for_bulk_format(
        directory, ParquetBulkWriters.for_row_type(row_type, hadoop_config=Configuration(), utc_timestamp=True)
    ).build()
    ds.sink_to(sink)
    env.execute()

    read_type = DataTypes.ROW(
        [DataTypes.FIELD("number", DataTypes.DOUBLE()), DataTypes.FIELD("string", DataTypes.VARCHAR(10))]
    )
    source = FileSource.for_bulk_file_format(
        ParquetColumnarRowInputFormat(
            row_type=read_type,
            hadoop_config=Configuration(),
            batch_size=500,
            is_utc_timestamp=False,
            is_case_sensitive=True,
        ),
        directory,
    ).build()
    env.from_source(source, WatermarkStrategy.no_watermarks(), "file-source").print()
    env.execute()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        parquet_demo(directory)
