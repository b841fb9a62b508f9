"""Event time: Nexmark under kills, many timers and windows at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from acceptance.lines import Outcome, line
from acceptance.state import figures

ROOT = Path(__file__).resolve().parents[2]
TESTS = ["tests/spark/test_nexmark.py", "tests/spark/test_windows.py"]


@line("windows-and-nexmark-under-kills", 1800)
def windows_and_nexmark() -> Outcome:
    """Windows, timers, joins and sessions on both backends: results are right although workers are killed or backends change."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--timeout", "600", "-m", "long", *TESTS],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(done.returncode == 0, (done.stdout.strip().splitlines() or [done.stderr[-500:]])[-1])


@line("million-timers-and-windows", 1800)
def million_timers_and_windows() -> Outcome:
    """1,000,000 timers and open windows on both backends: a restore takes less than a minute, and all of them fire."""
    found = figures("timers_and_windows.py", "1000000")
    shown = [
        f"{one['case']}, {one['backend']}: {one['bytes_each']} bytes each, checkpoint {one['checkpoint_s']} s, "
        f"restore {one['restore_s']} s, {one['fired_per_second']:,} fired/s"
        for one in found
    ]
    return Outcome(len(found) == 6 and all(one["restore_s"] < 60 for one in found), "; ".join(shown))
