"""The property tests of `make test` and the simulator, with many more examples and seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from acceptance.lines import Outcome, line

ROOT = Path(__file__).resolve().parents[2]
EFFORT = 20


@line("properties", 3600)
def properties() -> Outcome:
    """Property tests and simulated seeds, twenty times as many examples as in `make test`: none fails."""
    subjects = ("windows", "window_columns", "timers_agree", "joins", "watermarks", "async_wait")
    of_workers = [f"unit/worker/test_{subject}.py" for subject in subjects]
    simulated = ["simulation/test_seeds.py", "simulation/test_rescale.py"]
    tests = [str(ROOT / "tests" / name) for name in ("property", *simulated, *of_workers)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "logical", "--timeout", "1800", *tests],
        cwd=ROOT,
        env=os.environ | {"HEADRACE_TEST_EFFORT": str(EFFORT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(done.returncode == 0, (done.stdout.strip().splitlines() or [done.stderr[-500:]])[-1])


@line("known-defects", 1200)
def known_defects() -> Outcome:
    """The known defects that take long to show: each test of them fails as expected."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "long", str(ROOT / "tests" / "defects")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(done.returncode == 0, (done.stdout.strip().splitlines() or [done.stderr[-500:]])[-1])


@line("mutants", 3600)
def mutants() -> Outcome:
    """Every planted defect of `tests/mutants` is found by the tests that it names."""
    command = [sys.executable, str(ROOT / "scripts" / "mutants.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [name for name in done.stdout.splitlines() if name.startswith("ok")]
    lost = [name for name in done.stdout.splitlines() if name.startswith("FAILED")]
    return Outcome(done.returncode == 0, "; ".join([f"{len(found)} found", *lost]))
