"""A value of each type in one tuple, which a function sees and which is collected back.

Modelled on: Apache Flink, Python DataStream API, data types.

Not run on PyFlink: its collection source cannot store such a tuple.

Prints:
    True
    -2
    2147483647
    1099511627776
    0.5
    -1.25
    'text'
    Decimal('1.50')
    datetime.date(2024, 2, 29)
    datetime.time(12, 30, 15)
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4000)
    [1, 2, 3]
    ['a', 'b']
    ['c']
    [8589934592]
    {'a': 1}
    Row(f0='nested', f1=[1, 2])
    Row(name='Alice', age=12)
    ('pair', 1)
    {'any': {1, 2}}
    False
"""

import datetime
from decimal import Decimal

from headrace.pyflink.common import Row, Types
from headrace.pyflink.datastream import StreamExecutionEnvironment

TYPES = Types.TUPLE(
    [
        Types.BOOLEAN(),
        Types.SHORT(),
        Types.INT(),
        Types.LONG(),
        Types.FLOAT(),
        Types.DOUBLE(),
        Types.STRING(),
        Types.BIG_DEC(),
        Types.SQL_DATE(),
        Types.SQL_TIME(),
        Types.SQL_TIMESTAMP(),
        Types.PRIMITIVE_ARRAY(Types.INT()),
        Types.OBJECT_ARRAY(Types.STRING()),
        Types.BASIC_ARRAY(Types.STRING()),
        Types.LIST(Types.LONG()),
        Types.MAP(Types.STRING(), Types.INT()),
        Types.ROW([Types.STRING(), Types.LIST(Types.INT())]),
        Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()]),
        Types.TUPLE([Types.STRING(), Types.INT()]),
        Types.PICKLED_BYTE_ARRAY(),
    ]
)
VALUES = (
    True,
    -2,
    2**31 - 1,
    2**40,
    0.5,
    -1.25,
    "text",
    Decimal("1.50"),
    datetime.date(2024, 2, 29),
    datetime.time(12, 30, 15),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4000),
    [1, 2, 3],
    ["a", "b"],
    ["c"],
    [2**33],
    {"a": 1},
    Row("nested", [1, 2]),
    Row(name="Alice", age=12),
    ("pair", 1),
    {"any": {1, 2}},
)

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
stream = env.from_collection([VALUES], type_info=TYPES)


def show(value):
    assert value[16][1] == [1, 2] and value[17].name == "Alice"
    return [repr(field) for field in value]


with stream.map(show).execute_and_collect() as results:
    for name in next(results):
        print(name)
with stream.map(lambda value: value, output_type=TYPES).execute_and_collect() as results:
    print(next(results) == VALUES)
