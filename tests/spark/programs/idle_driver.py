"""A job that runs until its driver is killed, or until the driver's main thread ends; prints its workers first."""

import json
import sys
import time

from headgate import Configuration, SourceFunction, StreamExecutionEnvironment


class Silent(SourceFunction):
    def __init__(self):
        self.over = False

    def run(self, ctx):
        while not self.over:
            time.sleep(0.05)

    def cancel(self):
        self.over = True


env = StreamExecutionEnvironment.get_execution_environment(Configuration({"headgate.control.timeout": "3 s"}))
env.set_parallelism(2)
env.add_source(Silent()).key_by(lambda x: x).map(lambda x: x).print()
client = env.execute_async()
assert client.job.wait_running(90)
try:
    print(json.dumps([w.pid for w in client.job.workers().values()]), flush=True)
    if sys.argv[1] == "wait":
        client.wait()
except KeyboardInterrupt:
    print(client.cancel().value, flush=True)
