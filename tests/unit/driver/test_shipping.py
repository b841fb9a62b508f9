"""The program's own modules, and only those, go into the archive for the workers."""

import importlib
import io
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest

from headrace import StreamExecutionEnvironment
from headrace.driver import shipping
from headrace.errors import ConfigError, InvalidArgument
from headrace.worker.shell import LevelTask


def module(name, file=None, path=None):
    made = types.ModuleType(name)
    if file is not None:
        made.__file__ = str(file)
    if path is not None:
        made.__path__ = [str(path)]
    return made


def names(content):
    return sorted(zipfile.ZipFile(io.BytesIO(content)).namelist())


@pytest.fixture
def project(tmp_path):
    (tmp_path / "main.py").write_text("import shapes\n")
    (tmp_path / "shapes.py").write_text("X = 1\n")
    (tmp_path / "lazy.py").write_text("Y = 2\n")
    (tmp_path / "data.csv").write_text("1,2\n")
    package = tmp_path / "pkg" / "deep"
    package.mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("Z = 3\n")
    return tmp_path


def loaded(project):
    return {
        "__main__": module("__main__", project / "main.py"),
        "shapes": module("shapes", project / "shapes.py"),
        "pkg": module("pkg", project / "pkg" / "__init__.py", project / "pkg"),
        "pkg.deep": module("pkg.deep", project / "pkg" / "deep" / "__init__.py", project / "pkg" / "deep"),
        "numpy": np,
        "sys": sys,
        "json": __import__("json"),
        "headrace": __import__("headrace"),
    }


def test_own_modules_packages_and_files_beside_the_script(project):
    content = shipping.archive(loaded(project))
    assert names(content) == ["lazy.py", "pkg/__init__.py", "pkg/deep/__init__.py", "pkg/deep/inner.py", "shapes.py"]


def test_the_archive_can_be_imported_from(project, monkeypatch, tmp_path):
    file = tmp_path / "out.zip"
    file.write_bytes(shipping.archive(loaded(project)))
    monkeypatch.setattr(sys, "path", [str(file), *sys.path])
    try:
        from pkg.deep.inner import Z

        assert Z == 3
    finally:
        for name in ("pkg", "pkg.deep", "pkg.deep.inner"):
            sys.modules.pop(name, None)


def test_the_same_content_makes_the_same_archive(project):
    assert shipping.archive(loaded(project)) == shipping.archive(loaded(project))


def test_nothing_to_ship():
    assert shipping.archive({"sys": sys, "json": __import__("json"), "numpy": np}) is None


def test_too_much_to_ship(project, monkeypatch):
    monkeypatch.setattr(shipping, "_MAX_BYTES", 100)
    with pytest.raises(ConfigError, match="install them there"):
        shipping.archive(loaded(project))


def test_the_search_path_does_not_depend_on_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "lib", "/abs", "/abs"])
    assert shipping.search_path() == (str(tmp_path), str(tmp_path / "lib"), "/abs")


# --- files that an environment adds -----------------------------------------------------------------------------------


@pytest.fixture
def own_path(monkeypatch):
    """The search path and the modules of this process are as before when the test has ended."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("shapes", "pkg", "pkg.deep", "pkg.deep.inner"):
        sys.modules.pop(name, None)


def files_of(env):
    env.from_collection([1]).map(lambda x: x).print()
    return env._job_plan().python_files


@pytest.mark.usefixtures("own_path")
@pytest.mark.parametrize("kind", ["module", "archive", "directory"])
def test_a_module_an_archive_and_a_directory_can_be_added(project, tmp_path, kind):
    given = {"module": project / "shapes.py", "archive": tmp_path / "given.egg", "directory": project}[kind]
    if kind == "archive":
        given.write_bytes(shipping.archive(loaded(project)))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.add_python_file(str(given))
    (copy,) = files_of(env)
    assert "shapes.py" in names(Path(copy).read_bytes())
    assert ("pkg/deep/inner.py" in names(Path(copy).read_bytes())) is (kind != "module")
    shapes = importlib.import_module("shapes")  # the program itself finds it too
    assert shapes.__file__ == f"{copy}/shapes.py"
    assert shipping.archive({"shapes": shapes}) is None  # and it is not sent once more


@pytest.mark.usefixtures("own_path")
def test_files_of_the_same_name_are_two(project):
    plans = []
    for text in ("X = 1", "X = 2", "X = 1"):
        (project / "shapes.py").write_text(text)
        env = StreamExecutionEnvironment.get_execution_environment()
        env.add_python_file(str(project / "shapes.py"))
        plans.append(files_of(env))
    assert plans[0] == plans[2] != plans[1]
    assert files_of(StreamExecutionEnvironment.get_execution_environment()) == ()
    assert not set(plans[0] + plans[1]) & set(shipping.search_path())  # which all workers get


@pytest.mark.usefixtures("own_path")
def test_a_process_that_runs_tasks_of_two_jobs_imports_the_files_of_each(project):
    """Spark may use a Python worker again, if the user's session says so."""
    seen = []
    for text in ("X = 1", "X = 2", None):
        added = ()
        if text is not None:
            (project / "shapes.py").write_text(text)
            added = (shipping.add_file(str(project / "shapes.py")),)
        LevelTask(b"", None, 0, added)._extend_path()
        try:
            seen.append(importlib.import_module("shapes").X)
        except ModuleNotFoundError:
            seen.append(None)
    assert seen == [1, 2, None]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none.py", "there is no such file"),
        ("broken.zip", "it is neither a module nor a zip archive"),
        ("hdfs://host/x.py", "there is no such file"),
    ],
)
def test_a_file_that_cannot_be_added(tmp_path, name, problem):
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 and no more")
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(InvalidArgument, match=rf"add_python_file\(.*{name}'\): {problem}; give a .py file"):
        env.add_python_file(name if ":" in name else str(tmp_path / name))
