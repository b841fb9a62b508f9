"""Planted defects that the tests must find: `python scripts/mutants.py [NAME]...`, exit code 1 if one is not found.

A mutant is a file `tests/mutants/NAME.patch`: a unified diff of `src`, below lines that say what it plants and which tests
must fail with it:

    Defect: the job log is not asked
    Test: tests/edges/test_old_driver.py::test_the_new_driver_goes_on_when_the_old_one_has_ended
    --- a/src/headrace/...

Each is applied to a copy of `src`, so the repository stays as it is. A patch that does not apply any more must be made
anew: `tests/mutants/test_patches.py`, which belongs to `make test`, names it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "tests" / "mutants"
SOME_FAILED = 1  # pytest's exit code; with any other one the tests themselves are broken, or there are none


@dataclass(frozen=True)
class Mutant:
    """A planted defect, and the tests that find it."""

    path: Path
    defect: str
    tests: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Mutant:
        """Read a patch file; ValueError if its header is not complete."""
        header = path.read_text().partition("--- a/")[0].splitlines()
        named: dict[str, list[str]] = {"Defect": [], "Test": []}
        for line in header:
            key, _, value = line.partition(": ")
            if key not in named or not value:
                raise ValueError(f"{path}: the header has lines 'Defect: ...' and 'Test: ...' only, got {line!r}")
            named[key].append(value)
        if len(named["Defect"]) != 1 or not named["Test"]:
            raise ValueError(f"{path}: the header needs one line 'Defect: ...' and at least one 'Test: ...'")
        return cls(path, named["Defect"][0], tuple(named["Test"]))

    def plant(self, directory: Path) -> str | None:
        """Copy the sources into a directory with the defect; what the patch program says if that is not possible."""
        shutil.copytree(ROOT / "src", directory / "src", ignore=shutil.ignore_patterns("__pycache__"))
        command = ["patch", "-p1", "--batch", "--forward", "--directory", str(directory), "--input", str(self.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else done.stdout + done.stderr


def mutants() -> list[Mutant]:
    """All mutants, by name."""
    return [Mutant.read(path) for path in sorted(PATCHES.glob("*.patch"))]


def run_tests(tests: tuple[str, ...], source: Path) -> tuple[int, str]:
    """Run tests with other sources; the exit code of pytest, and its output."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    where = subprocess.run(
        [sys.executable, "-c", "import headrace; print(headrace.__file__)"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    if not where.stdout.startswith(str(source)):
        raise RuntimeError(f"the tests would use {where.stdout.strip()}, not {source}")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def outcome(mutant: Mutant) -> tuple[bool, str]:
    """Plant a mutant and run its tests, each alone: True and one word if every one of them finds it."""
    with tempfile.TemporaryDirectory() as scratch:
        refusal = mutant.plant(Path(scratch))
        if refusal is not None:
            return False, f"the patch does not apply; make it anew:\n{refusal}"
        for test in mutant.tests:
            code, output = run_tests((test,), Path(scratch) / "src")
            if code == 0:
                return False, f"not found by {test}"
            if code != SOME_FAILED:
                return False, f"pytest ended with {code} for {test}:\n{output}"
    return True, "found"


def main() -> int:
    """Run the mutants that are named, or all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names
    chosen = [mutant for mutant in mutants() if not names or mutant.path.stem in names]
    unknown = set(names) - {mutant.path.stem for mutant in chosen}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    tests = tuple(sorted({test for mutant in chosen for test in mutant.tests}))
    code, output = run_tests(tests, ROOT / "src")
    if code != 0:
        sys.stdout.write(f"{output}\nthese tests must pass before anything is planted\n")
        return 1
    all_found = True
    for mutant in chosen:
        begin = time.monotonic()
        found, text = outcome(mutant)
        all_found &= found
        seconds = time.monotonic() - begin
        sys.stdout.write(f"{'ok' if found else 'FAILED':6} {mutant.path.stem}: {text} ({seconds:.0f} s)\n")
        sys.stdout.flush()
    return 0 if all_found else 1


if __name__ == "__main__":
    sys.exit(main())
