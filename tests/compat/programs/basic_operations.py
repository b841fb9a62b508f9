"""Map, flat map, filter and sum over JSON documents.

Modelled on: Apache Flink, pyflink/examples/datastream/basic_operations.

Prints:
    (1, '{"name": "Kirk", "tel": 124, "addr": {"country": "Germany", "city": "Berlin"}}')
    (2, '{"name": "Ada", "tel": 136, "addr": {"country": "China", "city": "Shanghai"}}')
    (3, '{"name": "Linus", "tel": 125, "addr": {"country": "USA", "city": "Portland"}}')
    (4, '{"name": "Yukio", "tel": 33, "addr": {"country": "China", "city": "Hangzhou"}}')
    (1, '{"name": "Kirk", "tel": 124, "addr": {"country": "Germany", "city": "Berlin"}}')
    (Germany,123)
    (China,135)
    (USA,124)
    (China,167)
"""

import json

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import StreamExecutionEnvironment


def show(ds, env):
    ds.print()
    env.execute()


def basic_operations():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)

    ds = env.from_collection(
        collection=[
            (1, '{"name": "Kirk", "tel": 123, "addr": {"country": "Germany", "city": "Berlin"}}'),
            (2, '{"name": "Ada", "tel": 135, "addr": {"country": "China", "city": "Shanghai"}}'),
            (3, '{"name": "Linus", "tel": 124, "addr": {"country": "USA", "city": "Portland"}}'),
            (4, '{"name": "Yukio", "tel": 32, "addr": {"country": "China", "city": "Hangzhou"}}'),
        ],
        type_info=Types.ROW_NAMED(["id", "info"], [Types.INT(), Types.STRING()]),
    )

    # map
    def update_tel(data):
        json_data = json.loads(data.info)
        json_data["tel"] += 1
        return data.id, json.dumps(json_data)

    show(ds.map(update_tel), env)
    # filter
    show(ds.filter(lambda data: data.id == 1).map(update_tel), env)

    # flat map and key by
    def to_country(data):
        json_data = json.loads(data.info)
        yield json_data["addr"]["country"], json_data["tel"]

    show(
        ds.flat_map(to_country, output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda data: data[0])
        .sum(1),
        env,
    )


if __name__ == "__main__":
    basic_operations()
