"""What the tests of known defects use: the kits of other tests, and jobs that need no JVM."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "edges"))

from edge_kit import Cluster, jobs, ledger, tap

__all__ = ["cluster", "jobs", "ledger", "tap"]


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as cluster:
        yield cluster
