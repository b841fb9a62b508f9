import stat
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from headrace import config
from headrace.cli.doctor import check_checkpoint_dir, check_java, check_package, check_slots
from headrace.cli.main import app
from headrace.config import Configuration
from headrace.records import kernel

FAILS = """
from headrace.errors import GraphError
raise GraphError("operator 'count' (job.py:7): uid 'a' is used twice; give each operator its own uid")
"""


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run the command in an empty directory; the process looks untouched afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])
    config.set_process_defaults(Configuration())


@pytest.fixture
def script(tmp_path):
    def write(text, name="job.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


# --- run --------------------------------------------------------------------------------------------------------------


def test_run_makes_the_options_available(invoke, script):
    job = script("from headrace.config import process_defaults as p; print(p().get('parallelism.default'))")
    result = invoke("run", job, "-D", "parallelism.default=3", "-D", "spark.ui.enabled=false")
    assert (result.exit_code, result.stdout) == (0, "3\n")


def test_run_takes_the_command_line_over_the_file(invoke, script, tmp_path):
    (tmp_path / "headrace.yaml").write_text("parallelism.default: 5\nheadrace.buffer.size: 1 mb\n")
    job = script("from headrace.config import process_defaults as p; print(p().to_dict())")
    assert invoke("run", job, "-D", "parallelism.default=3").stdout == (
        "{'parallelism.default': '3', 'headrace.buffer.size': '1 mb'}\n"
    )
    assert invoke("run", job).stdout == "{'parallelism.default': '5', 'headrace.buffer.size': '1 mb'}\n"
    other = tmp_path / "other.yaml"
    other.write_text("parallelism.default: 7\n")
    assert invoke("run", job, "--config", other).stdout == "{'parallelism.default': '7'}\n"


def test_run_looks_like_python(invoke, script):
    script("word = 'helper'", "helper_of_job.py")
    job = script("import sys, helper_of_job; print(__name__, sys.argv, helper_of_job.word)")
    result = invoke("run", job, "in.txt", "--limit=3", "-v", "--", "-D", "x")
    assert result.stdout == f"__main__ {[str(job), 'in.txt', '--limit=3', '-v', '-D', 'x']} helper\n"


def test_run_takes_no_module_of_the_program_for_one_that_headrace_needs(tmp_path):
    """The names of modules that only a driver loads; `resource` and `profile` are of Python, the others of Spark's."""
    for name in ("profile", "resource", "psutil", "grpc", "pstats"):
        (tmp_path / f"{name}.py").write_text("class Own: pass")
    (tmp_path / "job.py").write_text(
        "from headrace import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.local()\n"
        "print(list(env.from_collection([1, 2]).map(lambda n: n * 2).execute_and_collect()))\n"
    )
    code = "from headrace.cli.main import main; main()"
    command = [sys.executable, "-c", code, "run", str(tmp_path / "job.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[2, 4]\n", "")


def test_run_shows_our_errors_without_a_traceback(invoke, script):
    result = invoke("run", script(FAILS))
    assert result.exit_code == 1
    assert result.stderr == ("operator 'count' (job.py:7): uid 'a' is used twice; give each operator its own uid\n")
    assert "Traceback" not in result.output


def test_run_shows_the_traceback_if_asked(invoke, script):
    result = invoke("run", "--traceback", script(FAILS))
    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback")
    assert "headrace.errors.GraphError: operator 'count'" in result.stderr


def test_run_shows_the_programs_own_failure_from_its_own_line_on(invoke, script):
    job = script("def f():\n    return 1 / 0\n\nf()\n")
    result = invoke("run", job)
    assert result.exit_code == 1
    assert f'Traceback (most recent call last):\n  File "{job}", line 4, in <module>' in result.stderr
    assert "runpy" not in result.stderr
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_run_names_the_line_of_a_syntax_error(invoke, script):
    job = script("x = (\n")
    result = invoke("run", job)
    assert result.exit_code == 1
    assert f'File "{job}", line 1' in result.stderr
    assert "SyntaxError" in result.stderr


def test_run_keeps_the_programs_exit_code(invoke, script):
    assert invoke("run", script("import sys; sys.exit(7)")).exit_code == 7


def test_run_names_a_missing_file(invoke):
    result = invoke("run", "none.py")
    assert (result.exit_code, result.stderr) == (1, "[HR-7012] there is no file 'none.py'\n")


def test_run_refuses_a_bad_option_before_the_program_starts(invoke, script):
    result = invoke("run", script("print('started')"), "-D", "paralelism.default=3")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(
        "[HR-1002] unknown option 'paralelism.default' (from -D); did you mean 'parallelism.default'?"
    )


# --- options ----------------------------------------------------------------------------------------------------------


def test_options_lists_the_table(invoke):
    assert invoke("options").stdout.count("\n") == 2 * len(config.OPTIONS)
    assert invoke("options", "restart-strategy.fixed-delay.delay").stdout == (
        "restart-strategy.fixed-delay.delay (duration, default 1 s)\n    Pause before each restart.\n"
    )
    assert "state.backend.type (hashmap|rocksdb, default hashmap)\n" in invoke("options", "state.").stdout


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_reports_each_check_and_the_options(invoke, tmp_path, fake_java):
    directory = tmp_path / "new" / "chk"
    result = invoke("doctor", "--no-spark", "--checkpoint-dir", directory, "-D", "parallelism.default=3")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0, result.output
    assert lines[0] == f"ok  Python {sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"
    assert lines[1].startswith("ok  Java 17 (JAVA_HOME=")
    assert [line.split()[1] for line in lines[2:6]] == ["pyspark", "pyarrow", "pandas", "rocksdict"]
    assert lines[5].endswith("(opens a database)")
    assert lines[6].startswith("ok  keyed functions run in ")
    assert lines[7] == f"ok  checkpoint directory {directory} is writable"
    assert lines[8:] == ["    parallelism.default = 3  (-D)"]
    assert not (tmp_path / "new").exists()


def test_doctor_says_that_loops_are_compiled_or_why_not(invoke, fake_java, monkeypatch):
    monkeypatch.setattr(kernel, "COMPILED", True)
    assert "ok  keyed functions run in compiled loops\n" in invoke("doctor", "--no-spark").stdout
    monkeypatch.setattr(kernel, "COMPILED", False)
    monkeypatch.setattr(kernel, "PROBLEM", "HEADRACE_KERNEL=plain")
    result = invoke("doctor", "--no-spark")
    assert "ok  keyed functions run in loops of plain Python, which is slower: HEADRACE_KERNEL=plain\n" in result.stdout
    assert result.exit_code == 0, result.output


def test_doctor_fails_with_what_to_do(invoke, tmp_path, fake_java):
    (tmp_path / "file").write_text("")
    result = invoke("doctor", "--no-spark", "--checkpoint-dir", tmp_path / "file")
    assert result.exit_code == 1
    assert f"FAIL  checkpoint directory {tmp_path / 'file'} cannot be written to: " in result.stdout
    assert "-> choose another with --checkpoint-dir or execution.checkpointing.dir, or give" in result.stdout


def test_doctor_refuses_a_bad_option(invoke):
    result = invoke("doctor", "--no-spark", "-D", "parallelism.default")
    assert (result.exit_code, result.stderr) == (
        1,
        "[HR-1003] -D parallelism.default: expected key=value, for example -D parallelism.default=4\n",
    )


def write_java(directory, version):
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return directory


@pytest.fixture
def fake_java(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(write_java(tmp_path / "jdk", "17.0.1")))


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_202"])
def test_an_old_java_in_java_home_fails_even_if_the_path_has_a_new_one(tmp_path, version):
    old = write_java(tmp_path / "old", version)
    new = write_java(tmp_path / "new", "21")
    check = check_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    major = "11" if version.startswith("11") else "8"
    assert str(check) == (
        f"FAIL  Java {major} (JAVA_HOME={old}) -> set JAVA_HOME to a Java 17 or newer, "
        "or unset it to use the one on the PATH"
    )
    assert check_java({"PATH": str(new / "bin")}).ok


def test_a_missing_java_says_what_to_install(tmp_path):
    assert str(check_java({"PATH": str(tmp_path)})) == (
        "FAIL  Java not found -> install a Java runtime 17 or newer "
        "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"
    )
    assert str(check_java({"JAVA_HOME": str(tmp_path)})).startswith("FAIL  Java does not start (JAVA_HOME=")


def test_packages():
    assert check_package("pytest").ok
    assert str(check_package("pytest", "0.0.", "pip install 'pytest==0.0.*'")).endswith(
        f"{pytest.__version__} -> pip install 'pytest==0.0.*'"
    )
    assert str(check_package("no-such-thing")) == ("FAIL  no-such-thing is not installed -> pip install no-such-thing")
    assert str(check_package("pyyaml")) == (  # its module has another name
        "FAIL  pyyaml cannot be imported: No module named 'pyyaml' -> pip install pyyaml"
    )


def test_checkpoint_directories(tmp_path):
    assert str(check_checkpoint_dir(None)) == "ok  checkpoint directory not set"
    assert check_checkpoint_dir(f"file://{tmp_path}").ok
    assert check_checkpoint_dir("memory://chk").ok
    assert list(tmp_path.iterdir()) == []
    assert not check_checkpoint_dir("nosuchscheme://bucket/chk").ok


def test_slots():
    assert str(check_slots("local[2]", lambda master: 2)) == "ok  Spark local[2]: 2 slots"
    assert str(check_slots("spark://x:7077", lambda master: 0)) == (
        "FAIL  Spark spark://x:7077: 0 slots -> start workers for this master, or give them free cores"
    )

    def broken(master):
        raise RuntimeError("no master\nat java.lang.Thread")

    assert str(check_slots("spark://x:7077", broken)) == (
        "FAIL  Spark spark://x:7077 does not start: no master -> check the master's address and its log"
    )
