"""Operating a job: Flink's command line, Prometheus, requests made of the OpenAPI page, what polling costs."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import venv
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import msgspec
import numpy as np
import psutil
import uvicorn

from acceptance.lines import Outcome, line, wait_until
from headrace.control.messages import Metrics
from headrace.rest.app import make_app
from headrace.rest.client import RestClient
from headrace.rest.connections import Connection
from headrace.rest.discovery import Server
from headrace.rest.jobs import Jobs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from command_line import Shell  # found by the path above
from rest_kit import FakeJob

PROGRAM = Path(__file__).with_name("programs") / "endless.py"
WIDE = Path(__file__).with_name("programs") / "wide_driver.py"
FLINK = "2.3.0"
OPTIONS = (
    "headrace.spark.master=local[8]",
    "spark.ui.enabled=false",
    "spark.driver.memory=512m",
    "rest.port=0",
    "parallelism.default=2",
    "web.checkpoints.history=200",  # some commands take longer than ten checkpoints
)


def find_job(directory: Path, driver: subprocess.Popen[Any]) -> tuple[Server, str] | None:
    """A job with a checkpoint, and how to reach its driver, whose temporary files are below a directory."""
    if driver.poll() is not None:
        raise AssertionError((directory / "driver.log").read_text()[-2000:])
    for path in directory.rglob("headrace-*/*.json"):
        server = msgspec.json.decode(path.read_bytes(), type=Server)
        client = RestClient(server.url, server.token)
        for job in client.send("GET", "/jobs/overview")["jobs"]:
            if job["state"] == "RUNNING":
                taken = client.send("GET", f"/jobs/{job['jid']}/checkpoints")
                if taken["counts"]["completed"]:
                    return server, job["jid"]
    return None


@contextmanager
def running_job(
    directory: Path, *options: str, arguments: tuple[str, ...] = ()
) -> Iterator[tuple[subprocess.Popen[str], Server, str]]:
    """`headrace run` of the endless program, when it has completed a checkpoint: the driver, how to reach it, the job."""
    directory.mkdir(exist_ok=True)
    shell = Shell(directory)
    with (directory / "driver.log").open("w") as log:
        words = [word for option in (*OPTIONS, *options) for word in ("-D", option)]
        driver = shell.start("run", *words, PROGRAM, str(directory), *arguments, output=log)
    try:
        server, job_id = wait_until(lambda: find_job(directory, driver), 180, "a checkpoint")
        yield driver, server, job_id
    finally:
        if driver.poll() is None:
            driver.kill()
        driver.wait()


# --- Flink's command line ---------------------------------------------------------------------------------------------


def install_flink(directory: Path) -> Path | str:
    """Flink's wheels in an environment of their own, without what Python programs for Flink need: where its home is.

    A text says why that is not possible.
    """
    venv.create(directory, with_pip=True)
    packages = [f"apache-flink=={FLINK}", f"apache-flink-libraries=={FLINK}"]
    command = [directory / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-compile", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"pip cannot install {' and '.join(packages)}: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    (home,) = directory.glob("lib/python*/site-packages/pyflink")
    return home


class FlinkCommand:
    """`flink ...` of Apache Flink, pointed at a driver of ours."""

    def __init__(self, home: Path, server: Server, directory: Path) -> None:
        self._home = home
        host, port = re.fullmatch(r"http://([\d.]+):(\d+)", server.url).groups()  # type: ignore[union-attr]
        self._target = ["-t", "remote", f"-Drest.address={host}", f"-Drest.port={port}"]
        self._environment = {
            **os.environ,
            "FLINK_HOME": str(home),
            "FLINK_CONF_DIR": str(home / "conf"),
            "FLINK_LOG_DIR": str(directory),
            "FLINK_REST_CLIENT_HEADERS": f"Authorization:Bearer {server.token}",
        }

    def __call__(self, command: str, *words: str) -> str:
        """What it prints; AssertionError if it fails."""
        (self._home / "bin" / "flink").chmod(0o755)
        whole = ["bash", str(self._home / "bin" / "flink"), command, *self._target, *words]
        done = subprocess.run(whole, capture_output=True, text=True, env=self._environment, timeout=180, check=False)
        assert done.returncode == 0, f"flink {command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


@line("flink-command-line", 1200)
def flink_command_line() -> Outcome:
    """Flink's own command line lists, checkpoints, savepoints, stops and cancels a job of Headrace."""
    with tempfile.TemporaryDirectory(prefix="headrace-flink-") as name:
        directory = Path(name)
        home = install_flink(directory / "flink")
        if isinstance(home, str):
            return Outcome(True, f"skipped: {home}")
        with running_job(directory / "first") as (driver, server, job_id):
            flink = FlinkCommand(home, server, directory)
            listed = flink("list")
            assert re.search(rf"{job_id} : endless \(RUNNING\)", listed), listed
            client = RestClient(server.url, server.token)
            for kind in ([], ["-full"]):
                printed = flink("checkpoint", job_id, *kind)
                assert re.search(r"Checkpoint \d+ for job|completed", printed), printed
            history = client.send("GET", f"/jobs/{job_id}/checkpoints")["history"]
            assert sum(one["trigger"] == "user" and one["status"] == "COMPLETED" for one in history) >= 2, history
            printed = flink("savepoint", job_id, f"file://{directory}/mine")
            (taken,) = (directory / "mine").iterdir()
            assert (taken / "_metadata").is_file()
            assert taken.name in printed, printed
            printed = flink("stop", "-p", f"file://{directory}/last", job_id)
            (last,) = (directory / "last").iterdir()
            assert last.name in printed, printed
            assert driver.wait(60) == 0
        with running_job(directory / "second") as (driver, server, job_id):
            flink = FlinkCommand(home, server, directory)
            printed = flink("cancel", job_id)
            assert job_id in printed, printed
            assert driver.wait(60) == 1
            log = (directory / "second" / "driver.log").read_text()
            assert "job 'endless' was cancelled" in log, log[-2000:]
    return Outcome(True, f"list, checkpoint, savepoint, stop and cancel of Flink {FLINK}")


# --- polling ----------------------------------------------------------------------------------------------------------

PAIRS, TURNS = 5, 16  # a pair is of many short windows that take turns: the speed of the machine changes all the time
SETTLING, WINDOW = 0.7, 3.0  # seconds
REQUESTS, CLIENTS, FLOOD = 20, 10, 500
FLOOD_SECONDS = 20
LARGEST_COST = 0.03
HOUR, HISTORY = 3600.0, 200
WIDE_REQUESTS, WIDE_CLIENTS = 2, 2


class Pollers:
    """Clients that send this number of requests a second to a driver, and others that listen to its events."""

    def __init__(self, server: Server, job_id: str, rate: float, listeners: int, threads: int = 1) -> None:
        self._host = server.url.removeprefix("http://")
        self._head = f"Host: {self._host}\r\nAuthorization: Bearer {server.token}"
        job = f"/jobs/{job_id}"
        self._paths = ["/jobs/overview", job, f"{job}/checkpoints", f"{job}/story", f"{job}/state-files", f"{job}/plan"]
        self._stop = threading.Event()
        self.answers: Counter[int] = Counter()
        self._threads = [threading.Thread(target=self._poll, args=(threads / rate,)) for _ in range(threads)]
        self._threads += [threading.Thread(target=self._listen) for _ in range(listeners)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _poll(self, pause: float) -> None:
        """By hand: what `http.client` costs would be counted as a cost of the driver."""
        requests = itertools.cycle([self._request(path) for path in self._paths])
        due = time.monotonic()
        with self._connected() as connection:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                due += pause
                connection.sendall(next(requests))
                answer = b""
                while b"\r\n\r\n" not in answer:
                    answer += connection.recv(1 << 16)
                start, _, body = answer.partition(b"\r\n\r\n")
                left = int(re.search(rb"(?i)content-length: (\d+)", start)[1]) - len(body)  # type: ignore[index]
                while left > 0:
                    left -= len(connection.recv(left))
                self.answers[int(start.split()[1])] += 1

    def _listen(self) -> None:
        """Also by hand."""
        with self._connected() as connection:
            connection.sendall(self._request("/events"))
            while not self._stop.is_set() and connection.recv(1 << 20):
                pass

    def _connected(self) -> socket.socket:
        host, _, port = self._host.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def _request(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\n{self._head}\r\n\r\n".encode()


@line("polling", 1200)
def polling() -> Outcome:
    """Polling and listening cost a job little; a flood of requests fails no checkpoint of a job that takes all cores."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-polling-") as name,
        running_job(Path(name) / "job", arguments=("fast",)) as (_, server, job_id),
    ):
        time.sleep(10)
        windows: list[tuple[float, float]] = []  # when each was settled, and the seconds that the machine had in it
        for polled in [False, True] * (PAIRS * TURNS):
            with Pollers(server, job_id, REQUESTS, CLIENTS) if polled else nullcontext():
                time.sleep(SETTLING)
                at, stolen = time.monotonic(), stolen_seconds()
                time.sleep(WINDOW)
                windows.append((at, WINDOW - (stolen_seconds() - stolen) / psutil.cpu_count()))
        answers, failed = flood(server, job_id)
        rates = [records_between(Path(name) / "job", at, at + WINDOW) / seconds for at, seconds in windows]
        stolen = 1 - statistics.fmean(seconds for _, seconds in windows) / WINDOW
    costs = []
    for first in range(0, len(rates), 2 * TURNS):
        alone, with_polling = rates[first : first + 2 * TURNS : 2], rates[first + 1 : first + 2 * TURNS : 2]
        costs.append(1 - sum(with_polling) / sum(alone))
    cost, wrong = statistics.median(costs), answers.total() - answers[200]
    figure = (
        f"{cost:.1%} of {statistics.median(rates[::2]):,.0f} records/s, of pairs {' '.join(f'{one:.1%}' for one in costs)}; "
        f"{stolen:.0%} of the time went to other machines on the host, and is not counted; "
        f"{answers.total() / FLOOD_SECONDS:.0f} requests/s beside it, {wrong} refused, {failed} checkpoints failed"
    )
    return Outcome(cost < LARGEST_COST and not wrong and not failed, figure)


@line("many-requests", 600)
def many_requests() -> Outcome:
    """The driver answers 500 requests a second beside a job with 2,000 records/s, and no checkpoint fails."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-requests-") as name,
        running_job(Path(name) / "job") as (_, server, job_id),
    ):
        answers, failed = flood(server, job_id)
    reached, wrong = answers.total() / FLOOD_SECONDS, answers.total() - answers[200]
    figure = f"{reached:.0f} requests/s, {wrong} refused, {failed} checkpoints failed"
    return Outcome(reached > 0.98 * FLOOD and not wrong and not failed, figure)


def flood(server: Server, job_id: str) -> tuple[Counter[int], int]:
    """Many requests a second, where the job leaves time for them: how many answers had which status, failed checkpoints."""
    with Pollers(server, job_id, FLOOD, 0, threads=64) as pollers:
        time.sleep(FLOOD_SECONDS)
    counts = RestClient(server.url, server.token).send("GET", f"/jobs/{job_id}/checkpoints")["counts"]
    return pollers.answers, counts["failed"]


def stolen_seconds() -> float:
    """Processor time that the host gave to other machines; known on Linux."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def records_between(directory: Path, begin: float, end: float) -> float:
    """What the endless job has read between two moments."""
    found = 0.0
    for file in directory.glob("progress-*"):
        lines = [line.split() for line in file.read_text().splitlines()]
        times, counts = [float(at) for at, _ in lines], [float(count) for _, count in lines]
        found += float(np.interp(end, times, counts) - np.interp(begin, times, counts))
    return found


# --- Prometheus -------------------------------------------------------------------------------------------------------

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def find_prometheus(directory: Path) -> Path | str:
    """The directory of `prometheus` and `promtool`: those on the PATH, else Debian's, unpacked; a text says why neither."""
    if (found := shutil.which("prometheus")) and shutil.which("promtool"):
        return Path(found).parent
    if shutil.which("apt-get") is None:
        return "prometheus is not on the PATH, and there is no apt-get"
    directory.mkdir()
    done = subprocess.run(
        ["apt-get", "download", "-q", "prometheus"],  # noqa: S607 - as on the PATH
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return f"apt-get cannot download prometheus: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    (package,) = directory.glob("*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(directory / "root")], check=True)  # noqa: S607 - as above
    return directory / "root" / "usr" / "bin"


@contextmanager
def scraping(binaries: Path, server: Server, directory: Path) -> Iterator[str]:
    """Prometheus, with our configuration pointed at a driver; its address."""
    token = directory / "token"
    token.write_text(str(server.token))
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    for old, new in {
        "/etc/prometheus/headrace-token": str(token),
        "127.0.0.1:8081": server.url.removeprefix("http://"),
        "scrape_interval: 10s": "scrape_interval: 1s",
        "- alerts.yml": f"- {DEPLOY}/prometheus/alerts.yml",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    (directory / "prometheus.yml").write_text(text)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [str(binaries / "prometheus"), f"--config.file={directory}/prometheus.yml"]
    command += [f"--storage.tsdb.path={directory}/data", f"--web.listen-address={address}"]
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(20)


def query(address: str, expression: str) -> list[Any]:
    """The samples of an expression now."""
    url = f"{address}/api/v1/query?{urlencode({'query': expression})}"
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - an address of ours
        return list(json.loads(answer.read())["data"]["result"])


@line("dashboard-speed", 900)
def dashboard_speed() -> Outcome:
    """64 subtasks x 20 operators, 200 checkpoints: first paint below 1 s, no view slower than 200 ms to update."""
    tests = Path(__file__).resolve().parents[2] / "tests" / "ui" / "test_speed.py"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "long", "--timeout", "600", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Outcome(done.returncode == 0, done.stdout.strip().splitlines()[-1])


@line("driver-memory-hour", 6000)
def driver_memory_hour() -> Outcome:
    """64 subtasks x 20 operators, 200 checkpoints of history, an hour of polling: the driver's memory is flat."""
    with tempfile.TemporaryDirectory(prefix="headrace-wide-") as name:
        directory = Path(name)
        with (directory / "driver.log").open("w") as log:
            driver = subprocess.Popen(
                [sys.executable, str(WIDE), name], stdout=log, stderr=log, env=os.environ | {"TMPDIR": name}
            )
        try:
            server, job_id = wait_until(lambda: find_job(directory, driver), 180, "a checkpoint")
            client = RestClient(server.url, server.token)
            with Pollers(server, job_id, WIDE_REQUESTS, WIDE_CLIENTS) as pollers:
                wait_until(
                    lambda: len(client.send("GET", f"/jobs/{job_id}/checkpoints")["history"]) >= HISTORY,
                    HISTORY * 5,
                    "a full history",
                )
                process, sizes = psutil.Process(driver.pid), []
                began = time.monotonic()
                while time.monotonic() - began < HOUR:
                    time.sleep(10)
                    sizes.append(process.memory_info().rss)
            taken = client.send("GET", f"/jobs/{job_id}/checkpoints")["counts"]
        finally:
            driver.kill()
            driver.wait()
    quarter = len(sizes) // 4
    first, last = statistics.median(sizes[:quarter]), statistics.median(sizes[-quarter:])
    good = last < first * 1.05 and taken["failed"] == 0 and set(pollers.answers) == {200}
    figure = (
        f"{first / 1e6:.0f} MB in the first quarter, {last / 1e6:.0f} MB in the last, at most {max(sizes) / 1e6:.0f} MB"
    )
    return Outcome(good, f"{figure}; checkpoints {taken['completed']}, answers {dict(pollers.answers)}")


@line("prometheus", 600)
def prometheus() -> Outcome:
    """Prometheus scrapes a driver, every query of the Grafana dashboard has data, every alert rule has fired in a test."""
    with tempfile.TemporaryDirectory(prefix="headrace-prometheus-") as name:
        directory = Path(name)
        binaries = find_prometheus(directory / "deb")
        if isinstance(binaries, str):
            return Outcome(True, f"skipped: {binaries}")
        promtool, rules = binaries / "promtool", DEPLOY / "prometheus"
        subprocess.run([promtool, "check", "rules", rules / "alerts.yml"], check=True, capture_output=True)
        subprocess.run([promtool, "test", "rules", "alerts_test.yml"], cwd=rules, check=True, capture_output=True)
        dashboard = json.loads((DEPLOY / "grafana" / "headrace.json").read_text())
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
        queries = [expression.replace("$job", ".*") for expression in queries]
        with (
            running_job(
                directory / "job", "state.backend.type=rocksdb", "execution.checkpointing.incremental=true"
            ) as job,
            scraping(binaries, job[1], directory) as address,
        ):

            def empty() -> list[str]:
                try:
                    return [expression for expression in queries if not query(address, expression)]
                except OSError:  # it is just starting
                    return queries

            try:
                wait_until(lambda: not empty(), 90, "data for every query")
            except TimeoutError:
                return Outcome(False, f"no data for {empty()}")
            assert query(address, "up")[0]["value"][1] == "1"
            firing = query(address, 'ALERTS{alertstate="firing"}')
            assert not firing, firing
    return Outcome(True, f"{len(queries)} queries have data, {len(rules_of())} alert rules fire in their test")


def rules_of() -> list[str]:
    """The names of the alert rules."""
    return re.findall(r"- alert: (\w+)", (DEPLOY / "prometheus" / "alerts.yml").read_text())


# --- schemathesis -----------------------------------------------------------------------------------------------------

SCHEMATHESIS = "4.32.5"
CASES = 5_000
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"
)


@contextmanager
def served(job: FakeJob) -> Iterator[str]:
    """REST of a job that does nothing, on a real server; its address."""
    jobs = Jobs()
    jobs.add(job)  # type: ignore[arg-type]
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(jobs, ["127.0.0.1"], "s3cret"), http=Connection, port=0, log_level="error", lifespan="off"
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, 20, "the server")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


@line("schemathesis", 1800)
def schemathesis() -> Outcome:
    """Requests made of the OpenAPI page, with right ids and with wrong ones: never a 5xx, answers are what their models say."""
    with tempfile.TemporaryDirectory(prefix="headrace-schemathesis-") as name:
        directory = Path(name)
        venv.create(directory / "env", with_pip=True)
        python = directory / "env" / "bin" / "python"
        package = f"schemathesis=={SCHEMATHESIS}"
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", package], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            return Outcome(True, f"skipped: pip cannot install {package}: {done.stderr.strip().splitlines()[-1]}")
        job = FakeJob()
        vertex = str(job.plan.graph.vertices[0].head.id)
        job.counters = {one.id: [Metrics(records_in=5, watermark=7)] for one in job.plan.graph.vertices}
        right = directory / "right.toml"
        right.write_text(f'[parameters]\n"path.job_id" = "{job.job_id}"\n"path.vertex_id" = "{vertex}"\n')
        wrong = directory / "wrong.toml"
        wrong.write_text("")
        cases = 0
        with served(job) as address:
            for config in (right, wrong):
                command = [directory / "env" / "bin" / "st", "--config-file", config, "run", f"{address}/openapi.json"]
                command += ["-H", "Authorization: Bearer s3cret", "--exclude-path", "/events", "--checks", CHECKS]
                command += ["--max-examples", "75", "--phases", "examples,coverage,fuzzing", "--continue-on-failure"]
                done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
                if done.returncode != 0:
                    sys.stderr.write(done.stdout[-8000:])
                    return Outcome(False, f"schemathesis ended with {done.returncode}")
                cases += sum(map(int, re.findall(r"(\d+) generated", done.stdout)))
    return Outcome(cases >= CASES, f"{cases} requests, no 5xx, every answer as its model says")
