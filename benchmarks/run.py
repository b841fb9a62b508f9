"""Runs the benchmarks: Headgate beside its peers, interleaved, medians, ratios.

    python benchmarks/run.py --quick          Headgate and Spark's own groupBy, a few minutes
    python benchmarks/run.py [--work DIR]     all peers; their environments are made in DIR (default: a cache folder)

One JSON line for each run goes to RESULTS (default: DIR/results.jsonl); at the end a table of medians and ratios.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PEERS = HERE / "peers"
REQUIREMENTS = {
    "flink": ["apache-flink==2.3.0"],
    "spark": ["pyspark==4.3.0", "pandas==2.3.3", "pyarrow==21.0.0", "protobuf>=6.33,<7"],
    "bytewax": ["bytewax==0.21.1"],
    "quix": ["quixstreams==3.28.1"],
    "pathway": ["pathway==0.33.0"],
}
OWN = "headgate"


class Bench:
    """One program to run: which environment, which script, which arguments."""

    def __init__(self, label: str, environment: str, script: str, *args: str) -> None:
        self.label, self.environment, self.script, self.args = label, environment, script, args


def headgate(label: str, *args: str) -> Bench:
    return Bench(label, OWN, "headgate_count.py", *args)


def w1(work: Path) -> list[Bench]:
    return [
        headgate("W1 headgate hashmap", "--records", "8000000"),
        Bench("W1 bytewax", "bytewax", "bytewax_count.py", "--work", f"{work}/run", "--records", "1600000"),
        Bench(
            "W1 pathway static",
            "pathway",
            "pathway_count.py",
            "--work",
            f"{work}/csv",
            "--kind",
            "stateful",
            "--records",
            "8000000",
        ),
        Bench(
            "W1 pyflink best",
            "flink",
            "flink_process.py",
            "--work",
            f"{work}/run",
            "--mode",
            "thread",
            "--parallelism",
            "1",
            "--key",
            "jvm",
        ),
        Bench(
            "W1 spark tws",
            "spark",
            "spark_tws.py",
            "--work",
            f"{work}/spark",
            "--batches",
            "3",
            "--rows",
            "500000",
            "--skip",
            "1",
        ),
    ]


def w2(work: Path) -> list[Bench]:
    return [
        headgate("W2 headgate batch", "--kind", "sum", "--emit", "batch", "--records", "30000000"),
        headgate("W2 headgate record", "--kind", "sum", "--emit", "record", "--records", "20000000"),
        Bench("W2 flink sql", "flink", "flink_sql.py", "--work", f"{work}/run"),
        Bench(
            "W2 pathway",
            "pathway",
            "pathway_count.py",
            "--work",
            f"{work}/csv",
            "--kind",
            "sum",
            "--records",
            "8000000",
        ),
        Bench(
            "W2 bytewax",
            "bytewax",
            "bytewax_count.py",
            "--work",
            f"{work}/run",
            "--records",
            "2000000",
            "--kind",
            "batch",
        ),
        Bench("W2 spark groupBy", "spark", "spark_agg.py", "--work", f"{work}/spark"),
    ]


def quick(work: Path) -> list[Bench]:
    return [
        headgate("W1 headgate hashmap", "--records", "4000000"),
        headgate("W1 headgate rocksdb", "--backend", "rocksdb", "--records", "2000000"),
        headgate("W2 headgate batch", "--kind", "sum", "--emit", "batch", "--records", "15000000"),
        headgate("W2 headgate record", "--kind", "sum", "--emit", "record", "--records", "10000000"),
        Bench(
            "W2 spark groupBy",
            OWN,
            "peers/spark_agg.py",
            "--work",
            f"{work}/spark",
            "--batches",
            "6",
            "--rows",
            "1000000",
            "--skip",
            "2",
        ),
    ]


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
            return None
    return folder / "bin" / "python"


def run_one(bench: Bench, work: Path, limit: int) -> dict[str, object]:
    """One run: the JSON line it printed last, or why there is none."""
    python = interpreter(work, bench.environment)
    if python is None:
        return {"label": bench.label, "notes": "not installed"}
    script = HERE / bench.script if bench.environment == OWN else PEERS / bench.script
    environment = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}", "FLINK_LOG_DIR": str(work / "log")}
    (work / "log").mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            [str(python), str(script), *bench.args],
            capture_output=True,
            text=True,
            timeout=limit,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"label": bench.label, "notes": f"not finished in {limit} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"label": bench.label, "notes": f"failed: {done.stderr.strip()[-200:]}"}
    return {"label": bench.label, **json.loads(lines[-1])}


def table(results: list[dict[str, object]]) -> list[str]:
    """Medians, and each figure as a ratio to Headgate's of the same work."""
    rates: dict[str, list[float]] = {}
    for result in results:
        if result.get("records_per_s"):
            rates.setdefault(str(result["label"]), []).append(float(str(result["records_per_s"])))
    medians = {label: statistics.median(values) for label, values in rates.items()}
    lines = [f"{'work and engine':28} {'records/s':>12}  {'runs':>4}  headgate is"]
    for label, median in medians.items():
        work = label.split()[0]
        own = [medians[mine] for mine in medians if mine.startswith(f"{work} headgate")]
        ratio = "" if "headgate" in label or not own else f"{own[0] / median:.1f}x"
        lines.append(f"{label:28} {median:12,.0f}  {len(rates[label]):4}  {ratio}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--only", default="", help="run only labels that contain this")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "headgate-bench")
    parser.add_argument("--limit", type=int, default=280, help="seconds for one run")
    parser.add_argument("--results", type=Path, default=None)
    a = parser.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    benches = quick(a.work) if a.quick else w1(a.work) + w2(a.work)
    benches = [bench for bench in benches if a.only in bench.label]
    results: list[dict[str, object]] = []
    with (a.results or a.work / "results.jsonl").open("a") as file:
        for _ in range(a.rounds or (1 if a.quick else 3)):
            for bench in benches:  # interleaved: one run of each, then the next round
                result = run_one(bench, a.work, a.limit)
                results.append(result)
                line = json.dumps(result)
                print(line, flush=True)
                file.write(line + "\n")
    lines = table(results)
    print("\n".join(lines))
    shown = "; ".join(f"{r['label']} {r.get('records_per_s', r.get('notes'))}" for r in results[-len(benches) :])
    print(f"summary: {shown}")


if __name__ == "__main__":
    main()
