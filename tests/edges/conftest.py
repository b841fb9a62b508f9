"""The cluster that the jobs of a test run on."""

import pytest
from edge_kit import Cluster


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as cluster:
        yield cluster
