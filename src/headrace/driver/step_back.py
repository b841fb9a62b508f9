"""The rule that lets a damaged checkpoint be skipped for an older one (SPEC S7)."""

from __future__ import annotations

from headrace import config
from headrace.api.sink import Sink
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.config import Configuration
from headrace.errors import StorageError
from headrace.graph.plan import JobPlan


class StepBack:
    """The rule: warn loudly; refuse if it is switched off, or if output that is visible already would be repeated."""

    def __init__(self, plan: JobPlan, configuration: Configuration) -> None:
        self._allowed = configuration.get(config.STEP_BACK)
        self._repeat = configuration.get(config.ALLOW_REPEATED_OUTPUT)
        self._sinks = [
            operator.name
            for vertex in plan.graph.vertices
            for operator in vertex.operators
            if isinstance(operator.spec.function, Sink)
        ]

    def over(self, checkpoint: CompletedCheckpoint, damage: StorageError, *, older: bool) -> str:
        """The warning that a checkpoint is skipped; CorruptState if it must not be, or if there is no `older` one."""
        what = f"checkpoint {checkpoint.id} ('{checkpoint.pointer}') is DAMAGED"
        if not older:
            refused = (
                "no older one is left, so the job cannot continue without losing state: repair the file, or start the job "
                f"from another checkpoint or savepoint with --from ({config.RECOVERY_PATH.key}), or anew"
            )
        elif not self._allowed:
            refused = (
                f"{config.STEP_BACK.key}=false forbids to start from an older one: repair the file, or start the job from "
                f"another checkpoint or savepoint with --from ({config.RECOVERY_PATH.key})"
            )
        elif self._sinks and not self._repeat:
            refused = (
                f"an older one cannot be used, since sink '{self._sinks[0]}' may have committed with this one and would write "
                f"the same output again: repair the file, or accept repeated output with {config.ALLOW_REPEATED_OUTPUT.key}=true"
            )
        else:
            repeated = "; output may be REPEATED" if self._sinks else ""
            return f"{what}, stepping back to an older one{repeated}: {damage}"
        raise CorruptState(f"{what}: {damage}; {refused}") from damage
