"""The program's own modules, and only those, go into the archive for the workers."""

import io
import sys
import types
import zipfile

import numpy as np
import pytest

from headgate.driver import shipping
from headgate.errors import ConfigError


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
        "headgate": __import__("headgate"),
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
