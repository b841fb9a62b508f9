"""Play seeds: `python -m headrace.testing.simulation --seeds 2000`, or one of them again with `--seed N --verbose`."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from headrace.testing.simulation.run import Run, play

_COMMAND = "python -m headrace.testing.simulation --verbose --seed"


def play_all(seeds: Iterable[int], processes: int) -> int:
    """Many seeds, with a line for each one that fails, and the sum."""
    started = time.monotonic()
    totals: Counter[str] = Counter()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for outcome, error in pool.map(play, seeds, chunksize=10):
            totals["failed" if error else "passed"] += 1
            totals.update(completed=outcome.completed, restarts=outcome.restarts, drivers=outcome.drivers - 1)
            totals.update(faults=outcome.faults, refused=outcome.refused is not None)
            if error:
                _say(f"seed {outcome.seed} FAILED ({outcome.program}, {outcome.mode}): {error}")
                _say(f"    {_COMMAND} {outcome.seed}")
            _progress(totals)
    seconds = time.monotonic() - started
    _say(
        f"{totals['completed']} checkpoints, {totals['restarts']} restarts, {totals['drivers']} new drivers, "
        f"{totals['faults']} storage faults, {totals['refused']} damaged and refused, {seconds:.0f} s"
    )
    _say(f"{totals['passed']} passed, {totals['failed']} failed")
    return 1 if totals["failed"] else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _progress(totals: Counter[str]) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{totals['passed']} passed, {totals['failed']} failed ")
        sys.stderr.flush()


def play_one(seed: int, verbose: bool) -> int:
    """One seed again, with all that happened."""
    run = Run(seed, keep_trace=verbose)
    failed = False
    try:
        run.go()
    except Exception:
        failed = True
        traceback.print_exc()
    for text in run.outcome.trace:
        _say(text)
    _say(f"seed {seed} ({run.outcome.program}, {run.outcome.mode}): {'FAILED' if failed else 'passed'}")
    return int(failed)


def main() -> int:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.simulation", description="seeded simulation")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, help="play this one only")
    parser.add_argument("--verbose", action="store_true", help="with --seed: print all that happened")
    options = parser.parse_args()
    if options.seed is not None:
        return play_one(options.seed, options.verbose)
    return play_all(range(options.first, options.first + options.seeds), options.processes)


if __name__ == "__main__":
    sys.exit(main())
