"""Fixtures of the tests that run whole jobs on threads."""

from edge_kit2 import cluster, ledger, tap

__all__ = ["cluster", "ledger", "tap"]
