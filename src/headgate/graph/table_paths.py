"""Where the tables of a canonical savepoint are, below its directory."""

from __future__ import annotations

import re
import zlib

from headgate.graph.job_graph import ChainedOperator

__all__ = ["operator_directory", "operator_table_file", "table_file"]


def operator_directory(name: str, operator_id: str) -> str:
    """One directory for each operator, that a person recognises.

    >>> operator_directory("Keyed Process", "0123456789abcdef")
    'keyed-process-01234567'
    """
    return f"{_plain(name)}-{operator_id[:8]}"


def table_file(operator: ChainedOperator, state: str, subtask: int) -> str:
    """The file with a subtask's part of a keyed state."""
    return (
        f"{operator_directory(operator.uid or operator.name, operator.id)}/{_plain(state)}/part-{subtask:05d}.parquet"
    )


def operator_table_file(operator: ChainedOperator, state: str, subtask: int) -> str:
    """The same for operator state."""
    directory = operator_directory(operator.uid or operator.name, operator.id)
    return f"{directory}/operator-state/{_plain(state)}/part-{subtask:05d}.parquet"


def _plain(name: str) -> str:
    """Small letters, digits, dashes and underscores; names that would become equal stay apart."""
    plain = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-") or "state"
    return plain if plain == name.lower() or plain.replace("-", " ") == name.lower() else f"{plain}-{_digest(name)}"


def _digest(name: str) -> str:
    return f"{zlib.crc32(name.encode()):08x}"
