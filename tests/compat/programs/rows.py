"""Rows: by position, by name, changed, nested, and with a kind.

Modelled on: Apache Flink, Python API docs, pyflink.common.Row; pyflink-learn, from_changelog_stream.

Prints:
    Row(name='Alice', age=12) Alice 12 12 True {'name': 'Alice', 'age': 12}
    {'name': 'Bob', 'pet': {'kind': 'cat', 'name': 'Tom'}} 2 True True
    Row(letter='x', count=1) 1
    <Row('Alice', 12)>
    <Row('Bob', 5)>
    <Row('Alice', 12)>
    <Row('Alice', 100)>
    <Row('Bob', 5)>
    +I Alice
    +I Bob
    -U Alice
    +U Alice
    -D Bob
"""

from headrace.pyflink.common import Row, RowKind, Types
from headrace.pyflink.datastream import StreamExecutionEnvironment

# A template of rows
Person = Row("name", "age")
alice = Person("Alice", 12)
print(alice, alice.name, alice[1], alice["age"], "name" in Person("Bob", 5), alice.as_dict())
row = Row(name="Bob", pet=Row(kind="cat", name="Tom"))
print(row.as_dict(True), len(row), Row(1, 2) == Row(1, 2), hash(Row("a")) == hash(Row("a")))
changed = Row("x", 0)
changed[1] += 1
changed.set_field_names(["letter", "count"])
print(changed, changed.count if not callable(changed.count) else changed["count"])

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
changes = env.from_collection(
    [
        Row.of_kind(RowKind.INSERT, "Alice", 12),
        Row.of_kind(RowKind.INSERT, "Bob", 5),
        Row.of_kind(RowKind.UPDATE_BEFORE, "Alice", 12),
        Row.of_kind(RowKind.UPDATE_AFTER, "Alice", 100),
        Row.of_kind(RowKind.DELETE, "Bob", 5),
    ]
)
changes.print()
changes.map(lambda change: f"{change.get_row_kind()} {change[0]}", output_type=Types.STRING()).print()
env.execute()
