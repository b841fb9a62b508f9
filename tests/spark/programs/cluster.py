"""A dataflow on several executors: it works, an executor is killed, it starts again, and nothing is left behind.

cluster.py MASTER with-kills|without KEY=VALUE...   prints one JSON line.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
import pyspark
from spark_cluster_helper import mark_word  # beside this file: not on any worker's path

from headrace import Configuration, JobFailed, RestartStrategies, SourceFunction, StreamExecutionEnvironment

LINES = ["to be or not to be", "that is the question"] * 10


class Endless(SourceFunction):
    def __init__(self):
        self.over = False

    def run(self, ctx):
        n = 0
        while not self.over:
            ctx.collect(n)
            n += 1
            time.sleep(0.02)

    def cancel(self):
        self.over = True


def executors(app):
    """The executors' JVMs of an application, wherever they hang in the tree of processes."""
    return [
        p
        for p in psutil.process_iter(["cmdline"])
        if "CoarseGrainedExecutorBackend" in " ".join(p.info["cmdline"] or ()) and app in p.info["cmdline"]
    ]


def marked(job_id):
    """Workers that run a task of this job."""
    found = []
    for p in psutil.process_iter():
        try:
            if Path(f"/proc/{p.pid}/comm").read_text().startswith(f"hr-{job_id[:8]}"):
                found.append(p.pid)
        except OSError:
            continue
    return found


def comes_true(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())


def start(configuration, restart=None):
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    if restart:
        env.set_restart_strategy(restart)
    env.add_source(Endless()).key_by(lambda x: x).map(lambda x: x).name("victim").add_sink(lambda x: None)
    client = env.execute_async("endless")
    assert client.job.wait_running(120), client.job.error
    return client


def executors_of(client):
    """The executors' JVMs that run tasks of a job."""
    return {psutil.Process(worker.pid).parent().parent().pid for worker in client.job.workers().values()}


def kill_executor(client):
    """One that runs a task: an executor that has just replaced another one may run none, or all of them."""
    os.kill(min(executors_of(client)), signal.SIGKILL)


def with_kills(configuration, client):
    """Of a job that may not start again, and of one that may."""
    found = {}
    kill_executor(client)
    try:
        client.wait(120)
    except JobFailed as error:
        found["failure"] = str(error)
    found["gone_after_failure"] = comes_true(lambda: not marked(client.get_job_id()))
    client = start(configuration, RestartStrategies.fixed_delay_restart(3, 100))
    kill_executor(client)
    found["restarted"] = comes_true(lambda: client.job.restarts >= 1 and client.job.wait_running(0), 150)
    found["log"], found["status"] = client.job.failure_log, client.get_job_status().name
    attempts = {Path(f"/proc/{pid}/comm").read_text().strip().rsplit("-", 1)[1] for pid in marked(client.get_job_id())}
    found["attempts_alive"] = sorted(attempts)
    found["cancelled"] = client.cancel().value
    found["gone_after_cancel"] = comes_true(lambda: not marked(client.get_job_id()))
    return found


def number_added(_):
    import added_number

    return added_number.NUMBER


def with_added_files(configuration, directory):
    """What jobs import whose environments added other files of the same name."""
    for number in (1, 2):
        file = Path(directory, str(number), "added_number.py")
        file.parent.mkdir()
        file.write_text(f"NUMBER = {number}\n")
        env = StreamExecutionEnvironment.get_execution_environment(configuration)
        env.add_python_file(str(file))
        yield from env.from_collection([0]).rebalance().map(number_added).execute_and_collect()


def main():
    configuration = Configuration({"headrace.spark.master": sys.argv[1], "headrace.slots.timeout": "60 s"})
    for pair in sys.argv[3:]:
        configuration.set(*pair.split("=", 1))
    found = {}

    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    words = env.from_collection(LINES, type_info="string").flat_map(str.split, output_type="string")
    counts = words.map(mark_word, "word string, n bigint").key_by("word").sum("n").execute_and_collect()
    found["counts"] = dict(sorted(Counter(row.word for row in counts).items()))
    spark = env._session()
    app = spark.sparkContext.applicationId
    found["executors"] = len(executors(app))

    with tempfile.TemporaryDirectory() as directory:
        found["added"] = list(with_added_files(configuration, directory))

    client = start(configuration)
    found["executors_used"] = len(executors_of(client))
    if sys.argv[2] == "with-kills":
        found |= with_kills(configuration, client)
    else:
        client.cancel()

    family = [p for p in psutil.process_iter() if _belongs(p, app)]
    spark.stop()
    found["gone_after_stop"] = comes_true(lambda: not any(p.is_running() for p in family))
    shutil.rmtree(Path(pyspark.__file__).parent / "work" / app, ignore_errors=True)
    print(json.dumps(found))


def _belongs(process, app):
    """An executor of the application, or something below one."""
    try:
        chain = [process, *process.parents()]
        return any(app in p.cmdline() and "CoarseGrainedExecutorBackend" in " ".join(p.cmdline()) for p in chain)
    except psutil.Error:
        return False


if __name__ == "__main__":
    main()
