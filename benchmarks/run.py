"""Runs the benchmarks: Headrace beside its peers, interleaved, medians, ratios.

    python benchmarks/run.py                      all works of `works.py`: hours
    python benchmarks/run.py --works W1,shapes    some of them
    python benchmarks/run.py --quick              W1 and W2, half as many records, no peers but Spark: a few minutes
    python benchmarks/run.py --works W1 --base ../older-checkout

The environments of peers are made in --work if they are missing; a peer that cannot be installed is reported as
such. Each figure is a JSON line in --results, with the time at which this program was started as `run`. At the end
`report.py` prints medians and ratios.

On a virtual machine others may take the CPU away. `stolen` in a line is the share of CPU time that they took during
the run; where it is more than --stolen, the run is repeated, and the one with the least counts. This holds for every
engine.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from cpu import cpu_times, stolen_since
from report import report
from works import OWN, WORKS, Bench, Settings

HERE = Path(__file__).resolve().parent
TRIES = 3
REQUIREMENTS = {
    "flink": ["apache-flink==2.3.0"],
    "spark": ["pyspark==4.3.0", "pandas==2.3.3", "pyarrow==21.0.0", "protobuf>=6.33,<7"],
    # The newest one for which there is a Kafka connector.
    "spark-kafka": ["pyspark==4.2.0", "pandas==2.3.3", "pyarrow==21.0.0", "protobuf>=6.33,<7"],
    "bytewax": ["bytewax==0.21.1"],
    "quix": ["quixstreams==3.28.1"],
    "pathway": ["pathway==0.33.0"],
}


@functools.cache
def interpreter(work: Path, environment: str) -> Path | None:
    """The Python of an environment, which is made if it is missing; None if it cannot be had."""
    if environment == OWN:
        return Path(sys.executable)
    folder = work / "venv" / environment
    if not (folder / "bin" / "python").exists():
        print(f"making the environment for {environment} ...", flush=True)
        made = subprocess.run([sys.executable, "-m", "venv", str(folder)], check=False).returncode == 0
        pip = [str(folder / "bin" / "pip"), "install", "-q", *REQUIREMENTS[environment]]
        if not made or subprocess.run(pip, check=False).returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)  # or it would be taken for a complete one
            return None
    return folder / "bin" / "python"


def python_of(bench: Bench, work: Path) -> Path | None:
    """An older checkout has an environment of its own, once it is set up there: what it needs may not be in ours."""
    of_base = None if bench.base is None else bench.base / ".venv" / "bin" / "python"
    return of_base if of_base is not None and of_base.exists() else interpreter(work, bench.environment)


def run_one(bench: Bench, work: Path, limit: int) -> list[dict[str, Any]]:
    """One run: the JSON lines that it printed, or why there are none."""
    python = python_of(bench, work)
    if python is None:
        return [{"notes": "not installed"}]
    root = bench.base or HERE.parent
    script = root / "benchmarks" / ("" if bench.environment == OWN else "peers") / bench.script
    environment = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    if bench.environment == OWN:
        environment["PYTHONPATH"] = str(root / "src")
    with tempfile.TemporaryDirectory(prefix="run-", dir=work, ignore_cleanup_errors=True) as directory:
        environment["FLINK_LOG_DIR"] = f"{directory}/log"
        Path(directory, "log").mkdir()
        args = [arg.replace("{run}", directory).replace("{work}", str(work)) for arg in bench.args]
        out, problem = finish([str(python), str(script), *args], environment, max(limit, bench.limit))
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return lines + ([{"notes": problem}] if problem or not lines else [])


def run_quietly(bench: Bench, work: Path, limit: int, most: float) -> list[dict[str, Any]]:
    """One run, repeated if too much of the machine was taken away; the lines of the one with the least."""
    found: list[tuple[float, list[dict[str, Any]]]] = []
    while len(found) < (1 if bench.once else TRIES) and not any(stolen <= most for stolen, _ in found):
        before = cpu_times()
        lines = run_one(bench, work, limit)
        found.append((stolen_since(before), lines))
    share, lines = min(found, key=lambda pair: pair[0])
    return [line | {"stolen": round(share, 3), "tries": len(found)} for line in lines]


def finish(command: list[str], environment: dict[str, str], limit: int) -> tuple[str, str]:
    """Run a command and everything it starts, for at most `limit` seconds: its output, and what went wrong."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        out, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], f"not finished in {limit} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # it is a session of its own and would go on
        raise
    last = " | ".join(errors.strip().splitlines()[-3:])
    return out, f"failed with exit code {process.returncode}: {last[-400:]}" if process.returncode else ""


def described(bench: Bench, line: dict[str, Any]) -> dict[str, Any]:
    """What `report.py` and `plots.py` know a line by."""
    values = [
        f"{line[name]:g}" if isinstance(line[name], float) else str(line[name]) for name in bench.by if name in line
    ]
    engine = bench.engine or str(line.get("peer", "?"))
    label = " ".join([bench.label, *([] if bench.engine else [engine]), *values])
    return {"label": label, "group": " ".join([bench.group, *values]), "engine": engine} | line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default=None, help=f"separated by commas: {','.join(WORKS)}")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--scale", type=float, default=None, help="factor for the number of records")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=None, help="run other engines too")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--only", default="", help="run only labels that contain this")
    parser.add_argument(
        "--base", type=Path, default=None, help="an older checkout, set up, whose W1 is run beside ours"
    )
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "headrace-bench")
    parser.add_argument("--limit", type=int, default=0, help="seconds for one run, if its own limit is shorter")
    parser.add_argument("--stolen", type=float, default=0.03, help="repeat a run if the host took away more than this")
    parser.add_argument("--results", type=Path, default=None, help="default: results.jsonl in --work")
    parser.add_argument("--list", action="store_true", help="print what would run")
    a = parser.parse_args()
    names = (a.works or ("W1,W2" if a.quick else ",".join(WORKS))).split(",")
    if unknown := [name for name in names if name not in WORKS]:
        parser.error(f"unknown works: {', '.join(unknown)}")
    rounds = a.rounds or (1 if a.quick else 3)
    peers = (not a.quick) if a.peers is None else a.peers
    base = None if a.base is None else a.base.resolve()
    settings = Settings(a.scale or (0.5 if a.quick else 1.0), peers, base, rounds)
    works = {name: [bench for bench in WORKS[name](settings) if a.only in bench.label] for name in names}
    if a.list:
        for bench in (bench for benches in works.values() for bench in benches):
            print(f"{bench.label:40} {bench.script} {' '.join(bench.args)}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what runs now must end too
    work = a.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    began = time.strftime("%Y-%m-%dT%H:%M:%S")
    with (a.results or work / "results.jsonl").open("a") as file:
        for benches in works.values():
            for number in range(rounds):
                for bench in benches:  # interleaved: one run of each, then the next round
                    if bench.once and number > 0:
                        continue
                    before = Counter()  # lines of the same label are rounds of the program's own
                    for line in run_quietly(bench, work, a.limit, a.stolen):
                        result = described(bench, line) | {"run": began}
                        result["round"] = number + before[result["label"]]
                        before[result["label"]] += 1
                        results.append(result)
                        text = json.dumps(result)
                        print(text, flush=True)
                        file.write(text + "\n")
                        file.flush()
    print("\n".join(report(results)))


if __name__ == "__main__":
    main()
