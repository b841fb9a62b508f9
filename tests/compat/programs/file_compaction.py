"""Files of several checkpoints become one.

Modelled on: Apache Flink, FileSystem connector ("File compaction", Python tab).

Fails:
    InvalidArgument: [HR-8002] enable_compact(): files are not compacted; set a longer interval of checkpoints, which
    makes larger files, or write to Delta (headrace.connectors.delta) and run its OPTIMIZE
"""

from headrace.pyflink.common import Encoder
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.connectors.file_system import FileCompactor, FileCompactStrategy, FileSink

env = StreamExecutionEnvironment.get_execution_environment()
file_sink = (
    FileSink.for_row_format("output", Encoder.simple_string_encoder())
    .enable_compact(
        FileCompactStrategy.builder().set_size_threshold(1024).enable_compaction_on_checkpoint(5).build(),
        FileCompactor.concat_file_compactor(),
    )
    .build()
)
env.from_collection(["a"]).sink_to(file_sink)
env.execute()
