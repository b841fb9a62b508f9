"""The table of checkpoints on the terminal: every figure of SPEC R10.2 has its column."""

import io

from rich.console import Console

from headgate.checkpoint.stats import (
    CheckpointStats,
    CheckpointStatus,
    Counts,
    RestoredStats,
    StatsSnapshot,
    SubtaskMetrics,
    SubtaskStats,
    VertexStats,
)
from headgate.driver.progress import checkpoint_table
from headgate.ids import VertexId


def shown(stats):
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(checkpoint_table(stats))
    return console.export_text()


def test_a_checkpoint_is_a_line():
    metrics = SubtaskMetrics(2048, 3 << 20, 4, 50, 60, 7, 800, 1024, True, 2)
    vertex = VertexStats(2, {0: SubtaskStats(1100, metrics)})
    one = CheckpointStats(17, 1000, "CHECKPOINT", False, None, "periodic", {VertexId(0): vertex}, full=True)
    one.chain_length, one.shared_files = 5, {"a": 30, "b": 4}
    restored = RestoredStats(12, 0, False, "chk-12", 0)
    text = shown(StatsSnapshot(Counts(1, 5, 1, 3, 1), {}, (one,), {}, restored))
    assert "3 completed, 1 failed, 1 in progress, restored from 12" in text
    line = next(part for part in text.splitlines() if " 17 " in part)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[1:3] == ["checkpoint, full, unaligned", "periodic"]
    assert cells[3].endswith("1/2")
    assert cells[4:] == ["2.0 KiB", "3.0 MiB", "100 ms", "60 ms", "4 ms", "50 ms", "7 ms", "1.0 KiB", "2", "34", "5"]


def test_one_that_failed_says_why():
    one = CheckpointStats(3, 0, "CHECKPOINT", False, None, "periodic", {}, status=CheckpointStatus.FAILED)
    one.failure_reason = "CHECKPOINT_EXPIRED"
    assert "CHECKPOINT_EXPIRED" in shown(StatsSnapshot(Counts(), {}, (one,), {}, None))
