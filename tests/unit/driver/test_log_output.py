"""What the driver logs is on stderr, as text or JSON, unless the program has handlers of its own."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from headrace.config import Configuration
from headrace.driver.log_output import shows_progress, start_log_output

LOGGER = logging.getLogger("headrace.somewhere")

PROGRAM = """
import logging
from headrace import StreamExecutionEnvironment

{setup}
env = StreamExecutionEnvironment.local()
env.get_configuration().set("taskmanager.numberOfTaskSlots", 4)
env.from_collection([1]).print()
env.execute()
logging.getLogger("headrace.test").debug("in detail")
"""
WARNING = "option 'taskmanager.numberOfTaskSlots' has no effect: Spark runs the workers; spark.executor.* sizes them"


@pytest.fixture
def log(monkeypatch, capsys):
    """Calls a function in a process without handlers, and gives what it wrote: pytest has handlers while a test runs."""
    root, top = logging.getLogger(), logging.getLogger("headrace")

    def call(function, *own):
        with monkeypatch.context() as patch:
            patch.setattr(root, "handlers", list(own))
            patch.setattr(top, "handlers", list(top.handlers))
            function()
        return capsys.readouterr().err

    yield call
    top.setLevel(logging.NOTSET)


def started(settings, *calls):
    def run():
        start_log_output(Configuration(settings))
        for call in calls:
            call()

    return run


def test_text(log):
    say = lambda: LOGGER.info("job %s runs", 7)  # noqa: E731
    assert log(started({}, lambda: LOGGER.debug("unseen"), say)) == "headrace: job 7 runs\n"
    assert log(started({}, say)) == "headrace: job 7 runs\n"  # once, though it was started twice


def test_json(log):
    def fail():
        try:
            raise ValueError("why")
        except ValueError:
            LOGGER.exception("it failed")

    written = log(started({"headrace.log.format": "json"}, lambda: LOGGER.warning("half\n%s", "done"), fail))
    first, second = map(json.loads, written.splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {"level": "WARNING", "logger": "headrace.somewhere", "message": "half\ndone"}
    assert second["traceback"].endswith("ValueError: why")


@pytest.mark.parametrize(("level", "seen"), [("DEBUG", 3), ("INFO", 2), ("WARNING", 1), ("ERROR", 0)])
def test_levels(log, level, seen):
    calls = [lambda: LOGGER.debug("a"), lambda: LOGGER.info("b"), lambda: LOGGER.warning("c")]
    assert len(log(started({"headrace.log.level": level}, *calls)).splitlines()) == seen
    assert len(log(started({}, *calls)).splitlines()) == 2  # the next job of the process has a level of its own


def test_a_program_with_handlers_of_its_own_keeps_them_and_its_level(log):
    records = []
    own = logging.Handler()
    own.emit = records.append
    logging.getLogger("headrace").setLevel(logging.WARNING)
    assert log(started({}, lambda: LOGGER.info("unseen"), lambda: LOGGER.warning("seen")), own) == ""
    assert [record.getMessage() for record in records] == ["seen"]
    assert logging.getLogger("headrace").level == logging.WARNING


def test_the_live_table_is_left_out_where_it_disturbs():
    assert shows_progress(Configuration())
    assert not shows_progress(Configuration({"headrace.log.format": "json"}))
    assert not shows_progress(Configuration({"headrace.log.level": "WARNING"}))


def run(tmp_path, *args, setup=""):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(setup=setup))
    command = [sys.executable, "-m", "headrace.cli.main", "run", str(program), *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == "1\n"
    return done.stderr


def test_a_run_shows_warnings_once(tmp_path):
    assert run(tmp_path) == f"headrace: {WARNING}\n"
    assert run(tmp_path, "--quiet", "-D", "headrace.log.level=ERROR") == f"headrace: {WARNING}\n"


def test_a_verbose_run_in_json(tmp_path):
    lines = [json.loads(line) for line in run(tmp_path, "--verbose", "-D", "headrace.log.format=json").splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [("WARNING", WARNING), ("DEBUG", "in detail")]


def test_the_error_of_a_run_is_a_line_of_json_too(tmp_path):
    (tmp_path / "program.py").write_text("from headrace.errors import GraphError; raise GraphError('no sink')")
    command = [sys.executable, "-m", "headrace.cli.main", "run", "program.py", "-D", "headrace.log.format=json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert json.loads(done.stderr)["message"] == "no sink"


def test_a_program_that_configures_logging_decides(tmp_path):
    setup = 'logging.basicConfig(format="mine: %(message)s", level=logging.WARNING)'
    assert run(tmp_path, setup=setup) == f"mine: {WARNING}\n"
