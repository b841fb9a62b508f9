"""Savepoints that earlier versions took are restored: tests/compat holds those of every version."""

import json
import re
import sys
from pathlib import Path

import pytest

from headrace import RestartStrategies

COMPAT = Path(__file__).parents[1] / "compat"
sys.path.insert(0, str(COMPAT))

from golden_program import COUNT, KEYS, build  # noqa: E402

GOLDEN = sorted(path.parent for path in COMPAT.glob("*/*/_metadata"))


def test_there_are_some():
    assert {path.name for path in GOLDEN} >= {
        "hashmap-canonical",
        "hashmap-native",
        "rocksdb-canonical",
        "rocksdb-native",
    }


def test_they_name_no_module_of_ours():
    files = [path for golden in GOLDEN for path in golden.rglob("*") if path.is_file()]
    assert [path for path in files if re.search(rb"headrace\.[a-z_]+\.", path.read_bytes())] == []


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_it_is_restored(make_env, workers, tmp_path, golden):  # SPEC R8
    backend = golden.name.split("-")[0]
    env = make_env(3, {"state.backend.type": backend, "execution.state-recovery.path": str(golden)})
    env.enable_checkpointing(1000)
    env.get_checkpoint_config().set_checkpoint_storage_dir(f"file://{tmp_path}/checkpoints")
    env.set_restart_strategy(RestartStrategies.no_restart())
    build(env, tmp_path)
    before = sorted(golden.rglob("*"))
    env.execute_async("golden").wait(120)
    rows = []
    for path in Path(tmp_path, "out").glob("part-*"):
        rows += [json.loads(text) for text in path.read_text().splitlines()]
    assert 0 < len(rows) < COUNT  # the rest
    for key in range(KEYS):
        numbers = sorted(row[1] for row in rows if row[0] % KEYS == key)
        assert numbers == list(range(COUNT // KEYS - len(numbers) + 1, COUNT // KEYS + 1))  # they go on to the last one
    assert {row[2] for row in rows} == {2}  # both old subtasks' parts of the union state
    assert all(row[3] == ["rule 1", "rule 2", "rule 3"] for row in rows)
    assert sorted(golden.rglob("*")) == before
