"""Commands that look at jobs, against a real server of a job that does nothing: as text for people, as JSON for programs."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
import typer.testing

from headrace.cli.jobs import _known
from headrace.cli.main import app
from headrace.cli.output import print_json
from headrace.config import Configuration
from headrace.driver.log_output import start_log_output
from headrace.errors import UserCodeError
from headrace.rest import client, discovery, server
from headrace.rest.client import RestError
from rest_kit import ID, FakeJob


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A running job that the command line finds."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(discovery.TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(server, "_jobs", server.Jobs())
    server._start(Configuration({"rest.port": 0}))
    job = FakeJob()
    server._jobs.add(job)
    return job


def command(*words, code=0):
    done = typer.testing.CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.output


def as_json(*words, code=0):
    return json.loads(command(*words, "--json", code=code))


def test_list_and_top(job):
    assert ID in command("list")
    (listed,) = as_json("list")["jobs"]
    assert (listed["jid"], listed["driver"].startswith("http://127.0.0.1:")) == (ID, True)
    assert "Sequence Source" in command("top")  # once, since this is no terminal
    assert as_json("top")["jobs"][0]["jid"] == ID


def test_info(job):
    job.fail_attempt(2000, UserCodeError("job.py:7: boom"))
    shown = command("info", ID[:5])
    assert f"({ID}) is RUNNING, 1 restarts" in shown
    assert "1 completed, 0 failed" in shown
    assert "last failure: [HR-5001] job.py:7: boom" in shown
    assert as_json("info", ID)["checkpoints"]["counts"]["completed"] == 1


def test_story(job):
    job.fail_attempt(2000, UserCodeError("job.py:7: boom"))
    job.run_attempt(2300, restored=5)
    shown = command("story", ID)
    assert "checkpoint 5" in shown
    assert "attempt 1: [HR-5001] job.py:7: boom" in shown
    assert [one["outcome"] for one in as_json("story", ID)["attempts"]] == ["FAILED", "OPEN"]


def test_checkpoints(job):
    assert "COMPLETED 1/2" in command("checkpoints", ID)
    assert as_json("checkpoints", ID)["history"][0]["id"] == 1


def test_operations(job):
    assert as_json("checkpoint", ID) == {"id": 7}  # REST has forgotten it already
    assert command("checkpoint", ID, "--full") == "checkpoint 7 is complete\n"
    assert as_json("savepoint", ID, "--target", "/s") == {"location": "/savepoints/s-1"}
    assert as_json("stop", ID) == {"location": "/savepoints/s-1"}
    assert as_json("rescale", ID, "-p", 3) == {"parallelism": 3}
    assert "it must be at least 1" in command("rescale", ID, "-p", 0, code=1)
    assert as_json("cancel", ID) == {"jid": ID}
    assert (job.cancelled, job.rescaled) == (True, [3])


def test_state_before_the_first_checkpoint(job):
    assert "no completed checkpoint yet" in command("state", "list", ID, code=1)
    assert "no completed checkpoint yet" in command("state", "get", ID, "count", "total", "x", code=1)


def test_logs(job):
    start_log_output(Configuration())
    logging.getLogger("headrace").warning("something happened")
    assert "something happened" in command("logs", ID)


def test_the_address_for_a_browser(job):
    shown = as_json("dashboard")
    assert command("dashboard") == shown["dashboard"] + "\n"
    assert shown["dashboard"].startswith(shown["url"] + "/login?token=")


def test_the_shell_completes_names_and_ids(job, monkeypatch):
    monkeypatch.setattr("headrace.cli.jobs._COMPLETION_SECONDS", 60)  # the machine may be busy
    assert dict(_known("a")) == {ID: "'Headrace job', RUNNING"}
    assert [word for word, _ in _known("Head")] == ["Headrace job"]


# --- text, terminals and pipes ------------------------------------------------------------------------------------------

HOSTILE = "[/data/in] [red]b :key: \x1b]0;t\x07 \x1b[2J \u202e"
SHOWN = r"[/data/in] [red]b :key: \x1b]0;t\x07 \x1b[2J \u202e"


def test_names_and_errors_are_text_and_nothing_that_a_terminal_obeys(job):
    job.plan.name = HOSTILE
    job.fail_attempt(2000, UserCodeError(HOSTILE))
    for words in (["list"], ["top"], ["info", ID], ["story", ID], ["info", "none"]):
        shown = command(*words, code=int(words[-1] == "none"))
        assert set(SHOWN.split()) <= set(re.split(r"[\s│()']+", shown)), words  # a cell may have several lines
        assert not set("\x1b\x07\u202e") & set(shown)
    assert as_json("list")["jobs"][0]["name"] == HOSTILE


def test_operations_on_a_job_of_any_name(job):
    """They have begun when their progress is shown."""
    job.plan.name = HOSTILE
    assert as_json("savepoint", HOSTILE) == {"location": "/savepoints/s-1"}
    assert command("checkpoint", HOSTILE) == "checkpoint 7 is complete\n"


def run_alone(*words, **environment):
    """The command in a process of its own."""
    options = {"env": {**os.environ, "TMPDIR": tempfile.tempdir, **environment}, "capture_output": True, "timeout": 60}
    return subprocess.run([sys.executable, "-m", "headrace.cli.main", *words], check=False, **options)


def test_a_terminal_without_unicode(job):
    job.plan.name = "caf\xe9"
    for words in (["list"], ["info", "caf\xe9"], ["info", "none"]):
        done = run_alone(*words, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert b"caf" in done.stdout + done.stderr, done
        assert b"Traceback" not in done.stderr
    assert b"caf\\xe9" in run_alone("list", PYTHONIOENCODING="ascii", PYTHONUTF8="0").stdout


def test_a_disk_that_is_full(job):
    with Path("/dev/full").open("w") as full:
        environment = {**os.environ, "TMPDIR": tempfile.tempdir}
        words = [sys.executable, "-m", "headrace.cli.main", "list"]
        done = subprocess.run(words, check=False, env=environment, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_proxy_is_not_asked_for_drivers_of_this_machine(job):
    """It would see the token, and find no job."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        done = run_alone("list", **{name: "http://127.0.0.1:1", "no_proxy": ""})
        assert ID.encode() in done.stdout, (name, done)


# --- drivers that are none, or do not answer ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b'{"a": 1}', b"[]", b'"x"', b"<html>", b'{"jobs": [1]}', b'{"jobs": [{"jid": "1"}]}', b"null", b"\xff", b""],
)
def test_another_server_at_the_address(body):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        shown = command("list", "--url", f"http://127.0.0.1:{other.server_port}", code=1)
        other.shutdown()
    assert shown.startswith("[HR-7001] cannot reach")


def test_a_driver_that_does_not_answer_is_not_left_out_in_silence(job, monkeypatch):
    """It may be stopped, or its machine be short of memory: to list no job would be wrong."""
    send = client.RestClient._send
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(
            client.RestClient,
            "_send",
            lambda driver, *request: send(driver, *request[:3], 1 if driver.url == url else request[3]),
        )
        stopped = discovery.Server(os.getppid(), url)
        (discovery.directory() / "1.json").write_bytes(msgspec.json.encode(stopped))
        done = typer.testing.CliRunner().invoke(app, ["list"])
        assert (done.exit_code, ID in done.stdout) == (0, True)
        reason = f"the driver at {url} has not answered for 1 s: process {os.getppid()} is stopped, or too busy"
        assert reason in done.stderr
        assert reason in command("info", "none", code=1)
        assert reason in " ".join(command("top").split())


def test_drivers_are_asked_at_once(job, monkeypatch):
    together = threading.Barrier(3)  # each waits until all are asked

    def jobs(driver, seconds=None):
        together.wait(60)
        raise client.DriverSilent(f"{driver.url} is silent")

    monkeypatch.setattr(client.RestClient, "jobs", jobs)
    for number in (1, 2):
        server = discovery.Server(os.getppid(), f"http://127.0.0.1:{number}")
        (discovery.directory() / f"{number}.json").write_bytes(msgspec.json.encode(server))
    done = typer.testing.CliRunner().invoke(app, ["list"])
    assert (done.exit_code, done.stderr.count("is silent")) == (0, 3)


def test_completion_does_not_wait_for_a_driver_that_does_not_answer(job, monkeypatch):
    waited = []
    send = client.RestClient._send

    def sent(driver, *request):
        waited.append(request[3])
        return send(driver, *request[:3], 60)

    monkeypatch.setattr(client.RestClient, "_send", sent)
    assert ID in dict(_known("a"))
    command("list")
    assert waited == [2, 30]


def test_a_job_that_ends_while_top_looks(job, monkeypatch):
    def get(remote, path):
        raise RestError("it is gone")

    monkeypatch.setattr(client.RemoteJob, "get", get)
    assert ID in command("top")
    assert as_json("top") == {"jobs": []}


def test_loopback_by_its_other_name(job):
    """The token is found all the same."""
    url = as_json("list")["jobs"][0]["driver"].replace("127.0.0.1", "localhost")
    assert ID in command("list", "--url", url)


def test_a_token_is_not_handed_on_by_a_redirect(monkeypatch):
    monkeypatch.setenv(discovery.TOKEN_VARIABLE, "s3cret")
    seen = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers.get("Authorization"))
            self.send_response(302 if len(seen) == 1 else 404)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        command("list", "--url", f"http://127.0.0.1:{other.server_port}", code=1)
        other.shutdown()
    assert seen == ["Bearer s3cret", None]


def test_an_operator_whose_name_has_a_slash(job, monkeypatch):
    asked = []
    states = {"states": [{"operator": "c" * 32, "operator-name": "read/parse", "uid": None}]}

    def get(remote, path):
        asked.append(path)
        return (
            states
            if path == "/state"
            else {"checkpoint": 1, "entries": [{"key": 1, "namespace": None, "value": 2}], "next": None}
        )

    monkeypatch.setattr(client.RemoteJob, "get", get)
    command("state", "get", ID, "read/parse", "a/b", "1")
    assert asked[-1].startswith(f"/state/{'c' * 32}/a%2Fb?")


def test_a_job_that_there_is_not(job):
    assert "there is no job 'none'" in command("info", "none", code=1)


def test_exit_codes_are_in_the_help():
    assert "Exit codes: 0 done; 1 refused" in " ".join(command("--help").replace("│", " ").split())
    command("info", code=2)


def test_options_and_machine_as_json(job, tmp_path):
    assert as_json("options", "rest.port")[0]["key"] == "rest.port"
    checks = as_json("doctor", "--no-spark", "--checkpoint-dir", tmp_path)
    assert all(set(check) == {"found", "ok", "fix"} for check in checks)


def test_json_of_text_that_utf8_cannot_carry(capsys):
    print_json({"key": "half \udcff", "when": date(2026, 1, 2)})
    assert json.loads(capsys.readouterr().out) == {"key": "half \\udcff", "when": "2026-01-02"}
