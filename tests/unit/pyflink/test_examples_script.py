"""The script that runs PyFlink's examples: which ones, with what changed, and how it compares."""

from __future__ import annotations

import sys
from collections import Counter

from test_coverage import script

SCRIPT = script("pyflink_examples")

GOOD = """
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.common import Types
env = StreamExecutionEnvironment.get_execution_environment()
print("begin")
env.from_collection([("a", 1)], Types.TUPLE([Types.STRING(), Types.INT()])).print()
env.execute()
"""
REFUSED = "from pyflink.datastream.connectors.pulsar import PulsarSource\n"
TABLES = "from pyflink.table import StreamTableEnvironment\n"


def wheel(tmp_path, **programs):
    folder = tmp_path / "pyflink" / "examples" / "datastream" / "below"
    folder.mkdir(parents=True)
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text)
    return tmp_path


def test_it_runs_examples_and_says_why_one_cannot_run(tmp_path, monkeypatch, capsys):
    root = wheel(tmp_path, good=GOOD, refused=REFUSED, tables=TABLES)
    assert [path.stem for path in SCRIPT.examples(root)] == ["good", "refused"]
    monkeypatch.setattr(sys, "argv", ["pyflink_examples.py", str(root), "--local"])
    assert SCRIPT.main() == 1
    printed = capsys.readouterr().out
    assert "good: 2 lines\n    (a,1)\n    begin\n" in printed
    assert (
        "refused: DIFFERENT\n    failed: line 1: pyflink.datastream.connectors.pulsar: read it with Spark's" in printed
    )
    assert "1 of 2 examples run" in printed


def test_it_compares_lines_in_any_order():
    ours, theirs = SCRIPT.Printed(Counter(["a", "b", "b"])), SCRIPT.Printed(Counter(["b", "a", "b"]))
    assert SCRIPT.compare(ours, theirs) == (True, [])
    theirs.lines["c"] += 1
    ours.lines["d"] += 1
    assert SCRIPT.compare(ours, theirs) == (False, ["    - c", "    + d"])
    assert SCRIPT.compare(SCRIPT.Printed(Counter(), "it broke"), theirs) == (False, ["    failed: it broke"])
    good, shown = SCRIPT.compare(ours, SCRIPT.Printed(Counter(), "it broke"))
    assert (good, shown[0]) == (None, "    PyFlink itself fails: it broke")
