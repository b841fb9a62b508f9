"""The program's own modules reach the workers.

Functions of the main script travel by value; what it imports from files beside it travels by name, so a worker must be
able to import it. Workers on the driver's machine look where the driver looks. Others get an archive of the program's
modules: those that are neither Python's own nor installed, and the files beside the main script. What an environment
adds (`add_python_file`) is an archive too, which only its jobs look into.

Archives are named after their content, so that in the Spark session two files never have the same name.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from headrace.control.deployment import ARCHIVE_PREFIX
from headrace.errors import ConfigError, InvalidArgument

_MAX_BYTES = 64 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same content makes the same archive


def search_path() -> tuple[str, ...]:
    """Return the module search path of this process, without its working directory and what environments added."""
    entries = (Path(entry).absolute() for entry in sys.path)
    return tuple(dict.fromkeys(str(entry) for entry in entries if not entry.name.startswith(ARCHIVE_PREFIX)))


def write_archive() -> str | None:
    """The program's own modules as a zip file; None if there are none."""
    content = archive(dict(sys.modules))
    return None if content is None else _write(content)


def add_file(path: str) -> str:
    """Copy a module, an archive of modules, or the modules in a directory; the copy is a zip file.

    This process can import from it as well, so that functions in it can be used in a program.
    """
    given = Path(path)
    if given.is_dir():
        files = (file for file in given.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        content = _zip({str(file.relative_to(given)): file for file in files})
    elif given.suffix == ".py" and given.is_file():
        content = _zip({given.name: given})
    elif zipfile.is_zipfile(given):
        content = given.read_bytes()
    else:
        problem = "it is neither a module nor a zip archive" if given.exists() else "there is no such file"
        raise InvalidArgument(
            "HR-1106",
            f"add_python_file({path!r}): {problem}; give a .py file, a .zip, .egg or .whl, or a directory, on this machine",
        )
    copy = _write(content)
    if copy not in sys.path:
        sys.path.insert(1, copy)
    return copy


def add_archive(path: str, call: str) -> str:
    """Copy an archive of any files, or a directory as one."""
    given = Path(path)
    if given.is_dir():
        return _write(_zip({str(file.relative_to(given)): file for file in given.rglob("*") if file.is_file()}))
    suffix = next((s for s in (".tar.gz", ".tgz", ".tar", ".zip", ".jar", ".whl") if given.name.endswith(s)), None)
    if suffix is None or not given.is_file():
        problem = "it is no archive (.zip, .tar, .tar.gz, .tgz)" if given.exists() else "there is no such file"
        raise InvalidArgument("HR-1106", f"{call}: {path!r}: {problem}")
    return _write(given.read_bytes(), suffix if "tar" in suffix or suffix == ".tgz" else ".zip")


def install_requirements(requirements: str, packages: str | None, target: str) -> None:
    """Install packages into a directory, from a directory of packages if that is given."""
    if not Path(requirements).is_file():
        raise InvalidArgument("HR-1106", f"set_python_requirements({requirements!r}): there is no such file")
    offline = [] if packages is None else ["--no-index", "--find-links", packages]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", target, "-r", requirements, *offline]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InvalidArgument(
            "HR-1106",
            f"set_python_requirements({requirements!r}): pip could not install the packages: {done.stderr.strip()[-500:]}",
        )


def _write(content: bytes, suffix: str = ".zip") -> str:
    path = _directory() / f"{ARCHIVE_PREFIX}{hashlib.sha256(content).hexdigest()[:16]}{suffix}"
    if not path.exists():
        incomplete = path.with_name(path.name + ".tmp")
        incomplete.write_bytes(content)
        incomplete.replace(path)
    return str(path)


def archive(modules: dict[str, ModuleType]) -> bytes | None:
    """The zip file for these loaded modules."""
    files: dict[str, Path] = {}
    for name in {name.partition(".")[0] for name in modules}:
        top = modules.get(name)
        if top is not None and name not in ("__main__", "__mp_main__", "headrace"):
            files.update(_files(name, top))
    main = getattr(modules.get("__main__"), "__file__", None)
    if main is not None:
        beside = Path(main).absolute()
        if _is_own(beside):
            files.update({f.name: f for f in beside.parent.glob("*.py") if f.name != beside.name})
    return _zip(files) if files else None


def _files(name: str, module: ModuleType) -> Iterator[tuple[str, Path]]:
    """(path in the archive, file) of a module or of a whole package, if it is the program's own."""
    directories = [Path(entry) for entry in getattr(module, "__path__", [])]
    for directory in directories:
        if _is_own(directory) and directory.is_dir():
            for file in directory.rglob("*.py"):
                yield str(Path(name, file.relative_to(directory))), file
    file_name = getattr(module, "__file__", None)
    if not directories and file_name and file_name.endswith(".py"):
        file = Path(file_name)
        if _is_own(file) and file.is_file():  # it may be in an archive
            yield f"{name}.py", file


def _is_own(path: Path) -> bool:
    """Return True if it is neither part of Python nor installed: those a worker has itself."""
    resolved = path.resolve()
    installed = "site-packages" in resolved.parts or "dist-packages" in resolved.parts
    return not installed and not any(resolved.is_relative_to(home) for home in _python_homes())


@cache
def _python_homes() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(sysconfig.get_path(name)).resolve() for name in names})


def _zip(files: dict[str, Path]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        for name, path in sorted(files.items()):
            out.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes())
    if target.tell() > _MAX_BYTES:
        raise ConfigError(
            "HR-1107",
            f"the program's own modules are {target.tell() >> 20} MiB zipped, too much to send to the workers with each "
            "job: install them there (pip, or an environment archive)",
        )
    return target.getvalue()


@cache
def _directory() -> Path:
    """Spark reads the archive as long as the application lives."""
    path = Path(tempfile.mkdtemp(prefix="headrace-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
