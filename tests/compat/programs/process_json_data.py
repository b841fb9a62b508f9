"""Change a field of JSON documents in a stream of strings.

Modelled on: Apache Flink, pyflink/examples/datastream/process_json_data.

Prints:
    (2, {'name': 'hello', 'tel': 136, 'addr': {'country': 'China', 'city': 'Shanghai'}})
"""

import json
import logging
import sys

from headrace.pyflink.datastream import StreamExecutionEnvironment


def process_json_data():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)

    ds = env.from_collection(
        collection=[
            (1, '{"name": "Flink", "tel": 123, "addr": {"country": "Germany", "city": "Berlin"}}'),
            (2, '{"name": "hello", "tel": 135, "addr": {"country": "China", "city": "Shanghai"}}'),
        ]
    )

    def update_tel(data):
        # parse the json
        json_data = json.loads(data[1])
        json_data["tel"] += 1
        return data[0], json_data

    def filter_by_country(data):
        # the json data could be accessed directly, there is no need to parse it again
        return "China" in data[1]["addr"]["country"]

    ds.map(update_tel).filter(filter_by_country).print()
    env.execute()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
    process_json_data()
