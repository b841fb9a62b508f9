"""Plans that follow from state: the number of key groups that it was stored with (SPEC R3.3), operators found again (R8.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from headgate import config
from headgate.checkpoint.assignment import SavedOperator, restored_max_parallelism
from headgate.config import Configuration
from headgate.driver.snapshots import restore_plan
from headgate.errors import HeadgateError
from headgate.graph.plan import JobPlan, make_plan
from headgate.ids import OperatorId
from headgate.storage import manifest as mf


def with_key_groups(plan: JobPlan, saved: Mapping[OperatorId, SavedOperator]) -> JobPlan:
    """The plan with the max parallelism of stored state, where the program leaves it open; else the same plan."""
    vertices = []
    for vertex in plan.graph.vertices:
        found = [saved[op.id] for op in vertex.operators if op.id in saved]
        if found and not vertex.max_parallelism_set:
            kept = restored_max_parallelism(vertex.name, found, vertex.parallelism, None)
            if kept != vertex.max_parallelism:
                vertex = replace(vertex, max_parallelism=kept)
        vertices.append(vertex)
    if all(new is old for new, old in zip(vertices, plan.graph.vertices, strict=True)):
        return plan
    return make_plan(replace(plan.graph, vertices=vertices), plan.layout, plan.settings)


@dataclass(frozen=True, slots=True)
class Found:
    """What becomes of an operator when a job starts from a snapshot."""

    operator: str
    uid: str | None
    what: str  # matched | new | dropped
    state_bytes: int


def find_operators(plan: JobPlan, manifest: mf.Manifest) -> list[Found]:
    """Every operator of the program and of the snapshot; what has no state and is gone is left out."""
    stored = {op.id: op for op in manifest.operators}
    found = []
    for vertex in plan.graph.vertices:
        for operator in vertex.operators:
            old = stored.pop(operator.id, None)
            what = "new" if old is None else "matched"
            found.append(Found(operator.name, operator.uid, what, 0 if old is None else old.size))
    found += [Found(op.name, op.uid, "dropped", op.size) for op in stored.values() if op.size]
    return found


def dry_run(plan: JobPlan, manifest: mf.Manifest, configuration: Configuration) -> int:
    """Print what would become of a snapshot's state; the exit code: 1 if the job would be refused."""
    table = Table(
        title=f"{manifest.type.value} {manifest.checkpoint_id} of job '{manifest.job_name}'", title_justify="left"
    )
    for column in ("operator", "uid", "state"):
        table.add_column(column)
    table.add_column("bytes", justify="right")
    found = find_operators(plan, manifest)
    for one in found:
        table.add_row(one.operator, one.uid or "", one.what, f"{one.state_bytes:,}")
    Console(width=None if Console().is_terminal else 120).print(table)
    try:
        restore_plan(
            plan,
            manifest,
            claim=False,
            ignore_unmatched=configuration.get(config.RECOVERY_IGNORE_UNCLAIMED),
        )
    except HeadgateError as error:
        print(f"the job would be refused: {error}")  # noqa: T201 - the user asked for it
        return 1
    print("the job would start; nothing was started")  # noqa: T201
    return 0
