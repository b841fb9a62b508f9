"""Checkpoints and a file sink on S3, a worker killed in between: prints what is there at the end."""

import json
import os
import signal
import sys
import time

import fsspec

from headrace import Configuration, StreamExecutionEnvironment
from headrace.connectors.files import FileSink

if __name__ == "__main__":
    bucket = sys.argv[1]
    options = {"headrace.spark.master": "local[8]", "spark.driver.memory": "512m", "spark.ui.enabled": "false"}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration(options)).set_parallelism(2)
    env.enable_checkpointing(300)
    env.get_checkpoint_config().set_checkpoint_storage_dir(f"{bucket}/checkpoints")
    rows = env.from_sequence(0, 2999, rate=600).map(lambda n: (n, "x"), output_type="id bigint, word string")
    rows.sink_to(FileSink(f"{bucket}/out", "json"))
    client = env.execute_async("s3")
    job = client.job
    assert job.wait_running(120)
    while job.stats.snapshot().counts.completed < 2:
        time.sleep(0.05)
    os.kill(job.workers()[0, 0].pid, signal.SIGKILL)
    client.wait(120)
    fs = fsspec.filesystem("s3")
    fs.invalidate_cache()
    ids = [json.loads(line)["id"] for path in fs.find(f"{bucket}/out") for line in fs.cat_file(path).splitlines()]
    print(json.dumps({"restarts": job.restarts, "ids": len(set(ids)), "rows": len(ids)}))
