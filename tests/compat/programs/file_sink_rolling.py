"""Lines to files: bucket, rolling policy, prefix and suffix; then the files are read again.

Modelled on: Apache Flink, FileSystem connector; pyflink-basic-introduction, sink/sink_file.

Prints:
    1 ['(1,café)', '(2,tea)']
    (1,café)
    (2,tea)
    late
"""

import tempfile
from pathlib import Path

from headrace.pyflink.common import Duration, Encoder, Types, WatermarkStrategy
from headrace.pyflink.datastream import CheckpointingMode, StreamExecutionEnvironment
from headrace.pyflink.datastream.connectors.file_system import (
    BucketAssigner,
    FileEnumeratorProvider,
    FileSink,
    FileSource,
    FileSplitAssignerProvider,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)


def sink_file_demo(output_path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.enable_checkpointing(2000, mode=CheckpointingMode.EXACTLY_ONCE)
    config = OutputFileConfig.builder().with_part_prefix("test_").with_part_suffix(".log").build()
    sink = (
        FileSink.for_row_format(output_path, Encoder.simple_string_encoder("UTF-8"))
        .with_bucket_check_interval(1000)
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .with_output_file_config(config)
        .build()
    )
    env.from_collection([(1, "café"), (2, "tea")], Types.TUPLE([Types.INT(), Types.STRING()])).sink_to(sink)
    by_hour = (
        FileSink.for_row_format(f"{output_path}/dated", Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.date_time_bucket_assigner("yyyy-MM-dd--HH", "UTC"))
        .with_rolling_policy(
            RollingPolicy.default_rolling_policy(
                part_size=1024**3, rollover_interval=15 * 60 * 1000, inactivity_interval=5 * 60 * 1000
            )
        )
        .build()
    )
    env.from_collection(["late"], Types.STRING()).sink_to(by_hour)
    env.execute("sink")
    names = [path for path in Path(output_path).glob("test_*.log")]
    print(len(names), names[0].read_text(encoding="utf-8").splitlines())

    source = (
        FileSource.for_record_stream_format(StreamFormat.text_line_format("UTF-8"), output_path)
        .set_file_enumerator(FileEnumeratorProvider.default_splittable_file_enumerator())
        .set_split_assigner(FileSplitAssignerProvider.locality_aware_split_assigner())
        .process_static_file_set()
        .build()
    )
    env.from_source(
        source=source,
        watermark_strategy=WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1)),
        source_name="File Source",
    ).print()
    env.execute("source")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        sink_file_demo(directory)
