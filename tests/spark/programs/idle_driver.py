"""A job that runs until the driver is interrupted, and one that runs when the program ends, as it does with its input.

Each prints the processes of its workers.
"""

import json
import sys
import time

from headrace import Configuration, SourceFunction, StreamExecutionEnvironment


class Silent(SourceFunction):
    def __init__(self):
        self.over = False

    def run(self, ctx):
        while not self.over:
            time.sleep(0.05)

    def cancel(self):
        self.over = True


def start():
    env = StreamExecutionEnvironment.get_execution_environment(Configuration({"headrace.spark.master": "local[8]"}))
    env.set_parallelism(2)
    env.add_source(Silent()).key_by(lambda x: x).map(lambda x: x).print()
    client = env.execute_async()
    assert client.job.wait_running(120)
    return client


client = start()
try:
    print(json.dumps([w.pid for w in client.job.workers().values()]), flush=True)
    client.wait()
except KeyboardInterrupt:
    print(client.cancel().value, flush=True)
client = start()
print(json.dumps([w.pid for w in client.job.workers().values()]), flush=True)
sys.stdin.read()
