"""Whether a damaged checkpoint may be skipped for an older one (SPEC S7)."""

from __future__ import annotations

from headgate import config
from headgate.api.sink import Sink
from headgate.checkpoint.handles import CorruptState
from headgate.config import Configuration
from headgate.errors import StorageError
from headgate.graph.plan import JobPlan


class StepBack:
    """The rule: say it loudly; refuse if it is switched off, or if output that is out already would come again."""

    def __init__(self, plan: JobPlan, configuration: Configuration) -> None:
        self._allowed = configuration.get(config.STEP_BACK)
        self._repeat = configuration.get(config.ALLOW_REPEATED_OUTPUT)
        self._sinks = [
            operator.name
            for vertex in plan.graph.vertices
            for operator in vertex.operators
            if isinstance(operator.spec.function, Sink)
        ]

    def over(self, checkpoint_id: int, damage: StorageError) -> str:
        """The warning that a checkpoint is skipped; CorruptState if it must not be."""
        if not self._allowed:
            raise CorruptState(
                f"checkpoint {checkpoint_id} is DAMAGED: {damage}; headgate.recovery.step-back=false forbids to start from an "
                "older one: repair the file, or name a snapshot with execution.state-recovery.path"
            ) from damage
        if self._sinks and not self._repeat:
            raise CorruptState(
                f"checkpoint {checkpoint_id} is DAMAGED: {damage}; an older one cannot be used, since sink '{self._sinks[0]}' may have "
                "committed with this one and would write the same output again: repair the file, or accept repeated output with "
                "headgate.recovery.allow-repeated-output=true"
            ) from damage
        repeated = "; output may be REPEATED" if self._sinks else ""
        return f"checkpoint {checkpoint_id} is DAMAGED, stepping back to an older one{repeated}: {damage}"
