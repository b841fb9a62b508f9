"""Plans that follow from state: the number of key groups that it was stored with (SPEC R3.3), operators found again (R8.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from headgate import config
from headgate.config import Configuration
from headgate.driver.snapshots import restore_plan
from headgate.errors import HeadgateError, IllegalState
from headgate.graph.plan import JobPlan, make_plan
from headgate.ids import OperatorId
from headgate.records.key_groups import check_max_parallelism
from headgate.storage import manifest as mf

__all__ = ["Found", "dry_run", "find_operators", "saved_key_groups", "with_key_groups"]


def saved_key_groups(manifest: mf.Manifest) -> dict[OperatorId, int]:
    """The max parallelism of each operator that left state."""
    return {op.id: op.max_parallelism for op in manifest.operators if any(s.pieces for s in op.subtasks)}


def with_key_groups(plan: JobPlan, saved: Mapping[OperatorId, int]) -> JobPlan:
    """The plan with the max parallelism of stored state, where the program leaves it open; else the same plan."""
    vertices = []
    for vertex in plan.graph.vertices:
        found = {saved[op.id] for op in vertex.operators if op.id in saved}
        if len(found) > 1:
            raise IllegalState(
                f"the operators of vertex '{vertex.name}' were stored with different numbers of key groups, {sorted(found)}: "
                "they cannot run in one chain; call start_new_chain() on one of them"
            )
        kept = found.pop() if found else vertex.max_parallelism
        if kept != vertex.max_parallelism and not vertex.max_parallelism_set:
            if kept < vertex.parallelism:
                raise IllegalState(
                    f"vertex '{vertex.name}' has parallelism {vertex.parallelism}, but its state was stored with {kept} key "
                    "groups, which is the highest parallelism it can ever have: lower the parallelism"
                )
            check_max_parallelism(kept, vertex.parallelism, f"vertex {vertex.name}")
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
