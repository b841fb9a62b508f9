"""The tests of stores and job logs, with drivers that race, on Azurite, fake-gcs-server and HDFS."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from acceptance.lines import Outcome, line

ROOT = Path(__file__).resolve().parents[2]


def fencing(chosen: str) -> Outcome:
    """Every test of storage on one server, which is fetched first: none fails, none is skipped."""
    options = ["-q", "--timeout", "800", "-m", "long", "-k", chosen]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(ROOT / "tests" / "unit" / "storage")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    last = (done.stdout.strip().splitlines() or [done.stderr[-500:]])[-1]
    return Outcome(done.returncode == 0 and "skipped" not in last, last)


for name, chosen in (("azure", "[az] or azure"), ("google", "[gs]"), ("hdfs", "[webhdfs]")):
    test = partial(fencing, chosen)
    test.__doc__ = fencing.__doc__
    line(f"fencing-{name}", 900)(test)
