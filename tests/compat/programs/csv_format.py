"""CSV files are written and read with one schema.

Modelled on: Apache Flink, CSV format (Python tabs).

Prints:
    ['1,"ada, b","1#2"', '2,bob,3']
    (2, 'ADA, B', [1, 2])
    (3, 'BOB', [3])
"""

import tempfile
from pathlib import Path

from headrace.pyflink.common import Row, Types, WatermarkStrategy
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.connectors.file_system import FileSink, FileSource
from headrace.pyflink.datastream.formats.csv import CsvBulkWriters, CsvReaderFormat, CsvSchema
from headrace.pyflink.table import DataTypes


def csv_demo(directory):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    schema = (
        CsvSchema.builder()
        .add_number_column("id", number_type=DataTypes.BIGINT())
        .add_string_column("name")
        .add_array_column("array", separator="#", element_type=DataTypes.INT())
        .set_column_separator(",")
        .build()
    )
    type_info = Types.ROW_NAMED(
        ["id", "name", "array"], [Types.LONG(), Types.STRING(), Types.OBJECT_ARRAY(Types.INT())]
    )
    ds = env.from_collection([Row(1, "ada, b", [1, 2]), Row(2, "bob", [3])], type_info=type_info)
    ds.sink_to(FileSink.for_bulk_format(directory, CsvBulkWriters.for_schema(schema)).build())
    env.execute()
    for path in sorted(path for path in Path(directory).rglob("*") if path.is_file()):
        print(path.read_text().splitlines())

    source = FileSource.for_record_stream_format(CsvReaderFormat.for_schema(schema), directory).build()
    ds = env.from_source(source, WatermarkStrategy.no_watermarks(), "csv-source")
    ds.map(lambda row: (row["id"] + 1, row["name"].upper(), row["array"])).print()
    env.execute()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        csv_demo(directory)
