"""Plans that follow from state: the number of key groups that it was stored with (SPEC R3.3), operators found again (R8.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rich.table import Table

from headrace import config
from headrace.checkpoint.assignment import SavedOperator, restored_max_parallelism
from headrace.config import Configuration
from headrace.driver.log_output import make_console
from headrace.driver.restore_plan import claimed_state, restore_plan, unclaimed_of
from headrace.errors import HeadraceError
from headrace.graph.plan import JobPlan, make_plan
from headrace.ids import OperatorId
from headrace.storage import manifest as mf


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
    return make_plan(
        replace(plan.graph, vertices=vertices), plan.layout, plan.settings, plan.python_files, plan.archives
    )


def find_operators(plan: JobPlan, manifest: mf.Manifest) -> list[tuple[str, str | None, str, int]]:
    """Every operator of the program and of the snapshot: name, uid, what becomes of it, and the bytes of its state.

    What has no state and is gone is left out.
    """
    stored = {op.id: op for op in manifest.operators}
    found: list[tuple[str, str | None, str, int]] = []
    for vertex in plan.graph.vertices:
        for operator in vertex.operators:
            old = stored.pop(operator.id, None)
            fate, size = ("new", 0) if old is None else ("matched", old.size)
            if old is not None and unclaimed_of(old, operator) is not None:
                fate = "dropped"
            found.append((operator.name, operator.uid, fate, size))
    return found + [(op.name, op.uid, "dropped", op.size) for op in stored.values() if op.size]


def dry_run(plan: JobPlan, manifest: mf.Manifest, configuration: Configuration) -> int:
    """Print what would become of a snapshot's state; the exit code: 1 if the job would be refused."""
    title = f"{manifest.type.value} {manifest.checkpoint_id} of job '{manifest.job_name}'"
    table = Table("operator", "uid", "state", title=title, title_justify="left")
    table.add_column("bytes", justify="right")
    for name, uid, fate, size in find_operators(plan, manifest):
        table.add_row(name, uid or "", fate, f"{size:,}")
    make_console(width=None if make_console().is_terminal else 120).print(table)
    try:
        ignore = configuration.get(config.RECOVERY_IGNORE_UNCLAIMED)
        restore_plan(plan, claimed_state(plan, manifest, ignore_unmatched=ignore), claim=False)
    except HeadraceError as error:
        print(f"the job would be refused: {error}")  # noqa: T201 - the user asked for it
        return 1
    print("the job would start; nothing was started")  # noqa: T201
    return 0
