"""The tests of stores and job logs, with drivers that race, on Azurite, fake-gcs-server and HDFS."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from acceptance.lines import Outcome, line

ROOT = Path(__file__).resolve().parents[2]


def fencing(scheme: str) -> Outcome:
    """Every test of storage on one server, which is fetched first: none fails, none is skipped."""
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "long", "-k", f"[{scheme}]", str(ROOT / "tests/unit/storage")]
    done = subprocess.run(tests, cwd=ROOT, capture_output=True, text=True, check=False)
    return Outcome(done.returncode == 0, (done.stdout.strip().splitlines() or [done.stderr[-500:]])[-1])


for name, scheme in (("fencing-azure", "az"), ("fencing-google", "gs"), ("fencing-hdfs", "webhdfs")):
    test = partial(fencing, scheme)
    test.__doc__ = fencing.__doc__
    line(name, 900)(test)
