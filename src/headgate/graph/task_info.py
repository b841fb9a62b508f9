"""Which subtask a function runs in."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TaskInfo"]


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Where a function runs."""

    task_name: str
    operator_id: str
    subtask: int
    parallelism: int
    max_parallelism: int
    attempt: int
    job_id: str
