"""Rows of all kinds on a stream of a declared type, which keeps no kinds.

Modelled on: pyflink-learn, from_changelog_stream; Apache Flink, Python API docs, pyflink.common.RowKind.

Fails:
    TypeMismatch: [HR-1302] expected RowTypeInfo(f0: String, f1: Integer): the kind -D of Row(f0='Alice', f1=12) would
    be lost on a stream of a declared type: leave out the type, or make the kind a field of the row
"""

from headrace.pyflink.common import Row, RowKind, Types
from headrace.pyflink.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection(
    [Row.of_kind(RowKind.INSERT, "Alice", 12), Row.of_kind(RowKind.DELETE, "Alice", 12)],
    type_info=Types.ROW([Types.STRING(), Types.INT()]),
).print()
env.execute()
