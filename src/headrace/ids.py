"""One distinct type for every id."""

from __future__ import annotations

import secrets
from typing import NewType

__all__ = ["EdgeId", "JobId", "OperatorId", "VertexId", "new_job_id"]

JobId = NewType("JobId", str)
"""32 hex digits, random at `execute`; the first folder below the checkpoint directory."""

OperatorId = NewType("OperatorId", str)
"""32 hex digits: murmur3-128 of the uid, or of the graph's structure (SPEC R8.5)."""

VertexId = NewType("VertexId", int)
"""Number of a chained vertex within its job graph, in topological order."""

EdgeId = NewType("EdgeId", int)
"""Number of an edge within its job graph; travels in every frame."""


def new_job_id() -> JobId:
    return JobId(secrets.token_hex(16))
