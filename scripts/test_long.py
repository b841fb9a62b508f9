"""Every acceptance line that takes too long for `make test`: prints `name ok|FAILED figure` for each.

    python scripts/test_long.py [--list] [--only NAME]...

A line is a function in one of the modules of `scripts/acceptance`, marked with `@line`. Each runs in a process of its
own, so that it has a Spark session of its own. Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import acceptance  # noqa: E402 - found by the path above
from acceptance.lines import LINES  # noqa: E402


def load() -> None:
    """Import all modules with lines; they enter themselves in the table."""
    for module in pkgutil.iter_modules(acceptance.__path__):
        importlib.import_module(f"acceptance.{module.name}")


def run_here(name: str) -> int:
    """Run one line in this process; its outcome is the last line of standard output."""
    outcome = LINES[name].function()
    sys.stdout.write("\n" + json.dumps({"ok": outcome.ok, "figure": outcome.figure}) + "\n")
    sys.stdout.flush()
    return 0


def reason(err: str) -> str:
    """The exception that a program ended with, or its last words: workers may have said something after it."""
    lines = err.strip().splitlines() or ["no message"]
    tracebacks = [number for number, line in enumerate(lines) if line.startswith("Traceback (")]
    after = lines[tracebacks[-1] + 1 :] if tracebacks else []
    return next((line for line in after if not line.startswith(" ")), lines[-1])


def run_apart(name: str) -> tuple[bool, str]:
    """Run one line in a process of its own, with everything it starts in one group that ends with it."""
    command = [sys.executable, str(Path(__file__).resolve()), "--run", name]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=LINES[name].seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return False, f"not done after {LINES[name].seconds} s"
    if process.returncode != 0:
        sys.stderr.write(err[-4000:])
        return False, f"exit code {process.returncode}: {reason(err)}"
    outcome = json.loads(out.strip().splitlines()[-1])
    return outcome["ok"], outcome["figure"]


def main() -> int:
    """Run the lines that were asked for."""
    parser = argparse.ArgumentParser(description="long acceptance lines")
    parser.add_argument("--list", action="store_true", help="only print the names")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this line; may be given again")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    load()
    if options.run:
        return run_here(options.run)
    unknown = [name for name in options.only or [] if name not in LINES]
    if unknown:
        parser.error(f"no such line: {', '.join(unknown)}; --list shows all")
    failed = False
    for name in options.only or LINES:
        if options.list:
            print(f"{name:32} {LINES[name].function.__doc__.splitlines()[0]}")
            continue
        started = time.monotonic()
        ok, figure = run_apart(name)
        failed = failed or not ok
        print(f"{name} {'ok' if ok else 'FAILED'} {figure} ({time.monotonic() - started:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
