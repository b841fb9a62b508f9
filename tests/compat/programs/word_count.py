"""Count words of a text, with arguments for input and output.

Modelled on: Apache Flink, Python DataStream API tutorial (datastream_tutorial).

Prints, in any order:
    (be,1)
    (in,1)
    (is,1)
    (or,1)
    (to,3)
    (not,1)
    (the,2)
    (tis,1)
    (mind,1)
    (nobler,1)
    (suffer,1)
    (whether,1)
    (question,1)
    (be,--that,1)
"""

import argparse
import logging
import sys

from headrace.pyflink.common import Encoder, Types, WatermarkStrategy
from headrace.pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from headrace.pyflink.datastream.connectors.file_system import (
    FileSink,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)

LINES = ["To be, or not to be,--that is the question:--", "Whether 'tis nobler in the mind to suffer"]


def word_count(input_path, output_path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    # write all the data to one file
    env.set_parallelism(1)

    if input_path is not None:
        ds = env.from_source(
            source=FileSource.for_record_stream_format(StreamFormat.text_line_format(), input_path)
            .process_static_file_set()
            .build(),
            watermark_strategy=WatermarkStrategy.for_monotonous_timestamps(),
            source_name="file_source",
        )
    else:
        ds = env.from_collection(LINES)

    def split(line):
        yield from line.split()

    ds = (
        ds.flat_map(split)
        .map(lambda i: (i.lower().strip(",:-'"), 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda i: i[0])
        .reduce(lambda i, j: (i[0], i[1] + j[1]))
    )

    if output_path is not None:
        ds.sink_to(
            sink=FileSink.for_row_format(base_path=output_path, encoder=Encoder.simple_string_encoder())
            .with_output_file_config(
                OutputFileConfig.builder().with_part_prefix("prefix").with_part_suffix(".ext").build()
            )
            .with_rolling_policy(RollingPolicy.default_rolling_policy())
            .build()
        )
    else:
        ds.print()

    env.execute()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", dest="input", required=False)
    parser.add_argument("--output", dest="output", required=False)
    known_args, _ = parser.parse_known_args([])
    word_count(known_args.input, known_args.output)
