"""Several executors: Spark's local cluster, and a standalone master with two workers on addresses of their own."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyspark
import pytest
from spark_kit import ORPHAN_SECONDS, run_program, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]  # one at a time

COUNTS = {"BE": 20, "IS": 10, "NOT": 10, "OR": 10, "QUESTION": 10, "THAT": 10, "THE": 10, "TO": 20}


def check(found):
    assert found["counts"] == COUNTS
    assert found["added"] == [1, 2]
    assert found["executors"] == 2
    assert found["executors_used"] == 2
    assert found["gone_after_stop"]


def test_local_cluster():
    """Of its executors that are killed see the line kill-executor of `make test-long`."""
    check(run_program("cluster.py", "local-cluster[2,4,2048]", "without", timeout=350))


def free_port():
    """A port that nobody listens on: two runs of the tests may share a machine."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Standalone:
    """A master and two workers from the pip package; the driver is on 127.0.0.1, the workers are not."""

    def __init__(self, directory):
        self.directory = directory
        self.processes = []
        self.spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"

    def start(self):
        ui, port = free_port(), free_port()
        master = f"spark://127.0.0.1:{port}"
        self._run("master", "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui))
        for host in ("127.0.0.2", "127.0.0.3"):
            work = self.directory / host
            options = ["--host", host, "--cores", "4", "--memory", "2g", "--work-dir", str(work), "--webui-port", "0"]
            self._run(host, "worker.Worker", *options, master)
        wait_until(lambda: self._workers(ui) == 2, "both workers")
        return master

    def _run(self, name, main, *args):
        log = (self.directory / f"{name}.log").open("wb")
        environment = dict(os.environ) | {"SPARK_LOCAL_IP": "127.0.0.1" if name == "master" else name}
        command = [str(self.spark_class), f"org.apache.spark.deploy.{main}", *args]
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self.directory))

    def _workers(self, ui):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{ui}/json/", timeout=2) as answer:
                return answer.read().count(b'"ALIVE"') - 1  # the master says it of itself too
        except OSError:
            return 0

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        deadline = time.monotonic() + ORPHAN_SECONDS
        for process in self.processes:
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def standalone(tmp_path):
    cluster = Standalone(tmp_path)
    yield cluster
    cluster.stop()


def test_standalone_with_workers_on_other_addresses(standalone):
    master = standalone.start()
    options = [
        "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.executor.memory=1g",
        "spark.executor.cores=4",
        f"spark.pyspark.python={sys.executable}",
    ]
    found = run_program("cluster.py", master, "with-kills", *options, timeout=350, env={"SPARK_LOCAL_IP": "127.0.0.1"})
    check(found)
    text = found["failure"]
    assert "an executor died" in text or "the worker of" in text
    assert "org.apache" not in text.split("\n")[0].split("Spark")[0]
    assert found["gone_after_failure"]
    assert found["restarted"], {name: found[name] for name in ("status", "log", "attempts_alive")}
    assert len(found["log"]) == 1
    assert found["attempts_alive"] == ["1"]
    assert found["cancelled"] == "CANCELED"
    assert found["gone_after_cancel"]
