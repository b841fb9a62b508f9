"""The pure functions of the dashboard, called in the browser."""

from __future__ import annotations

import pytest
from simulated_job import SimulatedJob
from simulated_server import SimulatedServer


@pytest.fixture(scope="module")
def call(browser):
    """Calls an exported function of a module with JSON arguments."""
    with SimulatedServer(SimulatedJob(operators=2, parallelism=1)).run() as server:
        page = browser.new_page(timezone_id="Europe/Paris")
        page.goto(server.url)
        script = "async ([module, name, given]) => (await import(`./${module}`))[name](...given)"
        yield lambda module, name, *given: page.evaluate(script, [module, name, list(given)])
        page.close()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bytes", 0, "0 B"),
        ("bytes", 1023, "1023 B"),
        ("bytes", 1024, "1.00 KiB"),
        ("bytes", 1_048_575, "1.00 MiB"),
        ("bytes", 123 << 30, "123 GiB"),
        ("bytes", -1, "–"),
        ("bytes", None, "–"),
        ("duration", 0, "0 ms"),
        ("duration", 999, "999 ms"),
        ("duration", 999.7, "1.00 s"),
        ("duration", 59_949, "59.9 s"),
        ("duration", 59_999, "1 min 0 s"),
        ("duration", 3_661_000, "1 h 1 min"),
        ("duration", 90_000_000, "1 d 1 h"),
        ("duration", -1, "–"),
        ("count", 1_234_567, "1,234,567"),
        ("rate", 1_234_567, "1.23M/s"),
        ("rate", None, "–"),
        ("percent", 0.956, "96 %"),
        ("watermark", None, "–"),
        ("watermark", 9_223_372_036_854_775_807, "end of input"),
        ("watermark", -9_223_372_036_854_775_808, "–"),
        ("clock", 1_700_000_000_000, "23:13:20"),
        ("time", 1_700_000_000_000, "2023-11-14 23:13:20"),
        ("json", "1", '"1"'),
    ],
)
def test_format(call, name, value, text):
    assert call("format.js", name, value) == text


def test_ticks(call):
    assert call("charts.js", "ticks", 7) == [0, 2, 4, 6, 8]
    assert call("charts.js", "ticks", 1) == [0, 1]
    assert call("charts.js", "ticks", 19, 4) == [0, 5, 10, 15, 20]
    assert call("charts.js", "durationTicks", 600_000) == [0, 300_000, 600_000]
    assert call("charts.js", "byteTicks", 3 << 20) == [0, 1 << 20, 2 << 20, 3 << 20]


def test_keys_are_json_or_text(call):
    assert [call("views/state.js", "keyOf", typed) for typed in ("42", '"42"', "a b", '{"a": 1}')] == [
        "42",
        '"42"',
        '"a b"',
        '{"a": 1}',
    ]


def test_events_of_checkpoints_are_merged_newest_first(call):
    history = [{"id": 5, "status": "IN_PROGRESS", "n": 1}, {"id": 3, "status": "COMPLETED"}]
    merge = lambda entry: call("live.js", "merged", {"history": history}, entry)["history"]  # noqa: E731
    assert merge({"id": 5, "status": "COMPLETED"})[0] == {"id": 5, "status": "COMPLETED", "n": 1}
    assert [one["id"] for one in merge({"id": 6})] == [6, 5, 3]
    assert [one["id"] for one in merge({"id": 4})] == [5, 4, 3]
    assert [one["id"] for one in merge({"id": 1})] == [5, 3, 1]


def test_phases_of_a_subtask(call):
    known = {
        "first_barrier": 110,
        "last_barrier": 150,
        "sync_start": 150,
        "sync_end": 160,
        "async_end": 190,
        "ack_timestamp": 195,
    }
    assert call("views/timeline.js", "phases", known, 100) == {
        "delay": [0, 10],
        "alignment": [10, 50],
        "sync": [50, 60],
        "async": [60, 90],
        "ack": [90, 95],
        "end": 95,
    }
    nothing = dict.fromkeys(known)
    assert call("views/timeline.js", "phases", nothing, 100) == {
        "delay": None,
        "alignment": None,
        "sync": None,
        "async": None,
        "ack": None,
        "end": None,
    }


def test_the_line_of_the_user_is_not_said_twice(call):
    split = lambda text, line: call("views/exceptions.js", "messageAndTrace", text, line)  # noqa: E731
    assert split("a.py:3: boom\n\nTraceback: x", "a.py:3") == ["boom", "Traceback: x"]
    assert split("boom\n\nwith two parts", None) == ["boom\n\nwith two parts", None]


def test_flame_graphs_begin_where_samples_differ(call):
    leaves = [{"name": "c", "value": 4, "children": []}, {"name": "d", "value": 6, "children": []}]
    root = {"name": "a", "value": 10, "children": [{"name": "b", "value": 10, "children": leaves}]}
    assert call("views/vertex.js", "trunk", root)["name"] == "b"


def test_skew(call):
    subtasks = [{"index": 0, "bytes": 10, "keys": None}, {"index": 1, "bytes": 30, "keys": None}]
    assert call("views/key_groups.js", "skew", subtasks, "bytes") == {
        "mean": 20,
        "most": 30,
        "times": 1.5,
        "fullest": 1,
    }
    assert call("views/key_groups.js", "skew", subtasks, "keys") is None


def test_layout_of_a_diamond(call):
    nodes = [{"id": name} for name in "abcd"]
    edges = [{"from": a, "to": b} for a, b in ("ab", "ac", "bd", "cd", "ad")]
    script_size = {"along": 100, "across": 50, "gapAlong": 20, "gapAcross": 10}
    found = call("layout.js", "layout", nodes, edges, script_size)
    assert found["along"] == 340
    # The edge that skips a layer has a place of its own in it.
    assert [len(line["points"]) for line in found["lines"]] == [2, 2, 2, 2, 3]
    middle = [line["points"][1]["across"] for line in found["lines"] if len(line["points"]) == 3]
    others = [line["points"][1]["across"] for line in found["lines"][:2]]
    assert all(abs(middle[0] - other) >= 45 for other in others)
