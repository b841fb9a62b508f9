"""What a job that starts from a snapshot refuses, each with one clear error. SPEC R3.3, R8.5, R8.6, R8.7"""

import shutil
from pathlib import Path

import pytest
from test_golden import GOLDEN
from typer.testing import CliRunner

from headrace import KeyedProcessFunction, RestartStrategies, ValueStateDescriptor
from headrace.cli.main import app
from headrace.config import Configuration, set_process_defaults
from headrace.errors import HeadraceError
from headrace.storage.published_snapshots import dispose_savepoint
from headrace.storage.remote import open_store

CANONICAL = next(path for path in GOLDEN if path.name == "hashmap-canonical")
NATIVE = next(path for path in GOLDEN if path.name == "hashmap-native")


class Wrong(KeyedProcessFunction):
    """Asks for a state of the golden program with another type."""

    def open(self, runtime_context):
        self.pair = runtime_context.get_state(ValueStateDescriptor("pair", "word string, n string"))

    def process_element(self, value, ctx):
        yield value


def started(make_env, path, program, **options):
    env = make_env(1, {"execution.state-recovery.path": str(path), **options})
    env.set_restart_strategy(RestartStrategies.no_restart())
    program(env)
    return env.execute_async("refused")


def keyed(env, uid="everything", function=None):
    stream = env.from_collection([1], type_info="bigint").uid("another source")
    stream.key_by(lambda n: n % 8).process(function or Wrong()).uid(uid).print()


def test_state_without_an_operator(make_env, workers):  # SPEC R8.5
    with pytest.raises(
        HeadraceError, match=r"state of operators that the program does not have any more: .*\(uid everything\)"
    ):
        started(make_env, CANONICAL, lambda env: keyed(env, "renamed")).wait(120)


def test_a_type_that_cannot_be_migrated(make_env, workers):  # SPEC R8.6
    ignore = {"execution.state-recovery.ignore-unclaimed-state": "true"}
    with pytest.raises(HeadraceError, match=r"state 'pair'.*'n'") as caught:
        started(make_env, CANONICAL, keyed, **ignore).wait(120)
    assert "bigint" in str(caught.value)
    assert "string" in str(caught.value)


def test_another_max_parallelism(make_env, workers):  # SPEC R3.3
    def program(env):
        env.set_max_parallelism(64)
        keyed(env)

    ignore = {"execution.state-recovery.ignore-unclaimed-state": "true"}
    with pytest.raises(HeadraceError, match=r"max parallelism mismatch.*stored with 128, the program sets 64"):
        started(make_env, CANONICAL, program, **ignore).wait(120)


def test_not_a_savepoint(make_env, workers, tmp_path):
    with pytest.raises(HeadraceError, match=r"cannot find a checkpoint or savepoint .* \(FileNotFound\)"):
        started(make_env, tmp_path, keyed).wait(120)


@pytest.mark.parametrize("golden", [CANONICAL, NATIVE], ids=["canonical", "native"])
def test_a_damaged_file(make_env, workers, tmp_path, golden):
    copy = tmp_path / "savepoint"
    shutil.copytree(golden, copy)
    victim = max((p for p in copy.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    with pytest.raises(HeadraceError, match=r"(?i)damaged"):
        started(make_env, copy, keyed, **{"execution.state-recovery.ignore-unclaimed-state": "true"}).wait(120)


def test_a_newer_version(make_env, workers, tmp_path):
    copy = tmp_path / "savepoint"
    shutil.copytree(CANONICAL, copy)
    metadata = copy / "_metadata"
    data = bytearray(metadata.read_bytes())
    data[4:8] = (99).to_bytes(4, "big")
    metadata.write_bytes(data)
    with pytest.raises(HeadraceError, match=r"version 99|newer"):
        started(make_env, copy, keyed).wait(120)


@pytest.fixture
def clean_defaults():
    """`headrace run` sets options for the whole process."""
    yield
    set_process_defaults(Configuration())


def test_a_dry_run_lists_what_becomes_of_every_operator(tmp_path, clean_defaults):  # SPEC R8.5
    program = tmp_path / "program.py"
    program.write_text(
        "from headrace import *\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_collection([1], type_info='bigint').uid('numbers').map(lambda n: n).uid('fresh').print()\n"
        "env.execute('dry')\n"
    )
    done = CliRunner().invoke(app, ["run", "--from", str(CANONICAL), "--dry-run", str(program)])
    assert done.exit_code == 1
    for words in (("numbers", "matched"), ("fresh", "new"), ("everything", "dropped")):
        assert any(all(word in row for word in words) for row in done.output.splitlines()), (words, done.output)
    assert "the job would be refused" in done.output
    done = CliRunner().invoke(app, ["run", "--from", str(CANONICAL), "-n", "--dry-run", str(program)])
    assert done.exit_code == 0, done.output
    assert "nothing was started" in done.output


def test_dispose(tmp_path):  # SPEC R8.7
    copy = tmp_path / "savepoint"
    shutil.copytree(CANONICAL, copy)
    (copy / "notes.txt").write_text("mine")
    done = dispose_savepoint(open_store(), str(copy))
    assert [Path(path).name for path in done.left] == ["notes.txt"]
    assert [p.name for p in copy.rglob("*") if p.is_file()] == ["notes.txt"]
