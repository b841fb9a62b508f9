"""Runs each DataStream example of the apache-flink wheel on Headrace, with only the root of its imports changed.

    python scripts/pyflink_examples.py WHEEL [--pyflink PYTHON] [--local] [--kafka HOST:PORT] [--jars JAR ...] [NAME ...]

WHEEL is the unpacked wheel. With `--pyflink`, a Python that has apache-flink, each example also runs on PyFlink itself, and
the lines that both print are compared, in any order; what functions print is on standard error with Spark. `--local` uses
Headrace's local runtime in place of Spark. The Kafka examples need a broker: `localhost:9092` in them is replaced by
`--kafka`; PyFlink also needs the connector's jars for them, `--jars`. Their sources never end, so they are stopped when
nothing more is printed.

Examples with the Table API are left out, and connectors of other vendors are not supported. Exit code 1 unless all are the
same.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cli.migration import migrate

_BROKER = "localhost:9092"
_QUIET_SECONDS = 40.0  # a program that never ends has printed everything
_LONGEST_SECONDS = 240.0
# Lines of logs and of the progress; what a program prints begins otherwise.
_NOISE = re.compile(
    r"^(\s*at |\s+\S+Exception|SLF4J|WARNING|INFO|WARN|ERROR|DEBUG|log4j|\d{4}-\d\d-\d\d[ T]|\d\d[:/]\d\d|Setting default|"
    r"To adjust logging|Using Spark|Using incubator|Picked up|JAVA_|OpenJDK|Kafka: the property|add_jars|option '|Job |job |headrace|No module named google|PYFLINK_|Using Any for|Closing down clientserver)"
)
_SUBTASK = re.compile(r"^\d+> ")
_TOPICS = {
    "kafka_avro_format": "test_avro_topic",
    "kafka_bytearray_format": "test_bytearray_topic",
    "kafka_csv_format": "test_csv_topic",
    "kafka_json_format": "test_json_topic",
    "kafka_row_field_extractor_example": "row-extractor-example",
}
_LOCAL = """
import runpy, sys
from headrace.testing import local_runtime
sys.argv = sys.argv[1:]
with local_runtime():
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass
class Printed:
    """What a program printed, and how it ended."""

    lines: Counter[str]
    failed: str | None = None
    on_error: Counter[str] = field(default_factory=Counter)  # there Spark shows what its workers print


def examples(wheel: Path) -> list[Path]:
    """The examples that use the DataStream API only."""
    found = sorted((wheel / "pyflink" / "examples" / "datastream").rglob("*.py"))
    return [
        path for path in found if not re.search(r"pyflink\.table|TableEnvironment", path.read_text(encoding="utf-8"))
    ]


def run(command: list[str], env: dict[str, str], endless: bool) -> Printed:
    """Run a program to its end, or, if it has none, until it prints nothing more."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        env = env | {"PYTHONUNBUFFERED": "1"}  # what an endless program has printed is not lost when it is stopped
        process = subprocess.Popen(command, stdout=out, stderr=err, env=env, text=True)
        begun = changed = time.monotonic()
        size, stopped, too_long = 0, False, False
        while process.poll() is None:
            time.sleep(0.5)
            now = time.monotonic()
            grown = os.fstat(out.fileno()).st_size
            size, changed = grown, now if grown != size else changed
            quiet = endless and size > 0 and now - changed > _QUIET_SECONDS
            if quiet or now - begun > _LONGEST_SECONDS:
                stopped, too_long = quiet, not quiet
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
        out.seek(0)
        err.seek(0)
        lines, on_error = printed_lines(out.read()), err.read()
        failed = None
        if too_long:
            failed = f"it did not end within {_LONGEST_SECONDS:.0f} s"
        elif process.returncode != 0 and not stopped:
            failed = (on_error.strip().splitlines() or ["no message"])[-1]
    return Printed(lines, failed, printed_lines(on_error))


def printed_lines(text: str) -> Counter[str]:
    """The lines of a program's own."""
    lines = [_SUBTASK.sub("", line.rstrip()) for line in text.splitlines() if not _NOISE.match(line)]
    return Counter(filter(None, lines))


def on_headrace(text: str, name: str, local: bool) -> Printed:
    """The program with another root of its imports."""
    done = migrate(text)
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / f"{name}.py"
        program.write_text(done.text, encoding="utf-8")
        command = [sys.executable, "-c", _LOCAL, str(program)] if local else [sys.executable, str(program)]
        printed = run(command, dict(os.environ), endless=name in _TOPICS)
    if printed.failed and done.unsupported:
        printed.failed = str(done.unsupported[0])
    return printed


def on_pyflink(text: str, name: str, python: str, jars: list[str]) -> Printed:
    """The program as it is."""
    given = ", ".join(repr(Path(jar).resolve().as_uri()) for jar in jars)
    text = re.sub(r"env\.add_jars\([^)]*\)", "None", text)
    if given:  # also for an example that expects them in Flink's own directory
        made = r"^( *)(env = StreamExecutionEnvironment\.get_execution_environment\(\))$"
        text = re.sub(made, rf"\1\2\n\1env.add_jars({given})", text, flags=re.MULTILINE)
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / f"{name}.py"
        program.write_text(text, encoding="utf-8")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SPARK"))}
        # PyFlink starts its workers with the `python` of the path.
        clean["PATH"] = f"{Path(python).parent}{os.pathsep}{clean.get('PATH', '')}"
        return run([python, str(program)], clean, endless=name in _TOPICS)


def make_topic(broker: str, topic: str) -> None:
    """A new, empty topic."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker})
    for future in admin.delete_topics([topic]).values():
        if future.exception(30) is None:
            time.sleep(2)  # it is deleted a moment later
    for future in admin.create_topics([NewTopic(topic, 3)]).values():
        future.result(30)


def compare(ours: Printed, theirs: Printed | None) -> tuple[bool | None, list[str]]:
    """Whether both printed the same, and the lines that differ; None if PyFlink itself fails, which compares nothing."""
    if ours.failed:
        return False, [f"    failed: {ours.failed}"]
    if theirs is None:
        return True, [f"    {line}" for line in sorted(ours.lines.elements())]
    if theirs.failed:
        shown = [f"    {line}" for line in sorted(ours.lines.elements())]
        return None, [f"    PyFlink itself fails: {theirs.failed}", *shown]
    missing, more = theirs.lines - ours.lines - ours.on_error, ours.lines - theirs.lines
    shown = [f"    - {line}" for line in sorted(missing.elements())] + [
        f"    + {line}" for line in sorted(more.elements())
    ]
    return not shown, shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--pyflink", help="a Python that has apache-flink")
    parser.add_argument("--local", action="store_true", help="Headrace's local runtime in place of Spark")
    parser.add_argument("--kafka", help="host:port of a broker")
    parser.add_argument("--jars", nargs="*", default=[], help="jars that PyFlink's connectors need")
    options = parser.parse_intermixed_args()
    good = 0
    found = [path for path in examples(options.wheel) if not options.names or path.stem in options.names]
    for path in found:
        name, text = path.stem, path.read_text(encoding="utf-8")
        if name in _TOPICS and options.kafka is None:
            print(f"{name}: skipped, it needs --kafka HOST:PORT")
            continue
        if name in _TOPICS:
            text = text.replace(_BROKER, options.kafka)
            make_topic(options.kafka, _TOPICS[name])
        ours, theirs = on_headrace(text, name, options.local), None
        if options.pyflink:
            if name in _TOPICS:
                make_topic(options.kafka, _TOPICS[name])
            theirs = on_pyflink(text, name, options.pyflink, options.jars)
        same, lines = compare(ours, theirs)
        good += same is True
        printed = f"{ours.lines.total()} lines"
        if theirs is not None and (workers := ((theirs.lines - ours.lines) & ours.on_error).total()):
            printed += f" and {workers} that functions print"
        print(f"{name}: {'DIFFERENT' if same is False else printed if same else f'{printed}, NOT COMPARED'}")
        if not same or theirs is None:
            print(*lines, sep="\n")
        sys.stdout.flush()
    print(f"{good} of {len(found)} examples run{'' if options.pyflink is None else ' and print what PyFlink prints'}")
    return 0 if good == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
