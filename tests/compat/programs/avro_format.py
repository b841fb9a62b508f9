"""Avro records in Avro files and in Parquet files.

Modelled on: Apache Flink, Avro format, Parquet format, FileSystem connector (Python tabs).

Not run on PyFlink: it needs the jar of Avro.

Prints:
    parquet> {"name": "ada", "favoriteNumber": 7, "favoriteColor": null}
    parquet> {"name": "bob", "favoriteNumber": null, "favoriteColor": "red"}
    avro> {"name": "ada", "favoriteNumber": 7, "favoriteColor": null}
    avro> {"name": "bob", "favoriteNumber": null, "favoriteColor": "red"}
"""

import tempfile
from pathlib import Path

from headrace.pyflink.common import WatermarkStrategy
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.connectors.file_system import FileSink, FileSource
from headrace.pyflink.datastream.formats.avro import (
    AvroBulkWriters,
    AvroInputFormat,
    AvroSchema,
    GenericRecordAvroTypeInfo,
)
from headrace.pyflink.datastream.formats.parquet import AvroParquetReaders, AvroParquetWriters

SCHEMA = """
{
    "type": "record",
    "name": "User",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "favoriteNumber",  "type": ["int", "null"]},
        {"name": "favoriteColor", "type": ["string", "null"]}
    ]
}
"""
USERS = [
    {"name": "ada", "favoriteNumber": 7, "favoriteColor": None},
    {"name": "bob", "favoriteNumber": None, "favoriteColor": "red"},
]


def json_dumps(record):
    import json

    return json.dumps(dict(record))


def avro_demo(directory):
    schema = AvroSchema.parse_string(SCHEMA)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    avro_type_info = GenericRecordAvroTypeInfo(schema)
    for kind, writers in [("avro", AvroBulkWriters), ("parquet", AvroParquetWriters)]:
        sink = FileSink.for_bulk_format(f"{directory}/{kind}", writers.for_generic_record(schema)).build()
        # A map to indicate its Avro type info is necessary for serialization
        env.from_collection(USERS).map(lambda e: e, output_type=avro_type_info).sink_to(sink)
    env.execute()

    parquet = FileSource.for_record_stream_format(
        AvroParquetReaders.for_generic_record(schema), f"{directory}/parquet"
    ).build()
    env.from_source(parquet, WatermarkStrategy.no_watermarks(), "file-source").map(json_dumps).print("parquet")
    env.execute()
    avro_file = next(str(path) for path in Path(directory, "avro").rglob("*") if path.is_file())
    env.create_input(AvroInputFormat(avro_file, schema)).map(json_dumps).print("avro")
    env.execute()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        avro_demo(directory)
