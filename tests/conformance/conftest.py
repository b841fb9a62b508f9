from __future__ import annotations

import pytest
from lab import BACKENDS, LONG, PAUSES, Lab


@pytest.fixture(params=BACKENDS)
def backend_name(request):
    return request.param


@pytest.fixture(params=PAUSES)
def lab(request, backend_name, tmp_path):
    """A lab without TTL, with each kind of pause."""
    return Lab(backend_name, tmp_path, request.param)


@pytest.fixture(params=[None, LONG], ids=["no-ttl", "ttl"])
def any_lab(request, lab):
    """The same, also with a time to live that never ends in the test."""
    lab.ttl = request.param
    return lab


@pytest.fixture
def still_lab(backend_name, tmp_path):
    """A lab whose pauses do nothing."""
    return Lab(backend_name, tmp_path)
