"""Which writer has a channel to which reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.graph.job_graph import Partitioning

KINDS = ["forward", "rebalance", "rescale", "shuffle", "broadcast", "global", "hash", "custom"]
_sizes = st.integers(1, 40)


@given(st.sampled_from(KINDS), _sizes, _sizes)
def test_targets_and_writers_are_inverse(kind, writers, readers):
    if kind == "forward":
        readers = writers
    part = Partitioning(kind)
    channels = {(w, r) for w in range(writers) for r in part.targets(w, writers, readers)}
    assert channels == {(w, r) for r in range(readers) for w in part.writers(r, writers, readers)}
    assert all(0 <= r < readers for _, r in channels)


@given(_sizes, _sizes)
def test_rescale_leaves_nobody_out_and_is_even(writers, readers):
    part = Partitioning("rescale")
    targets = [len(part.targets(w, writers, readers)) for w in range(writers)]
    sources = [len(part.writers(r, writers, readers)) for r in range(readers)]
    assert min(targets) >= 1
    assert min(sources) >= 1
    assert max(targets) - min(targets) <= 1
    assert max(sources) - min(sources) <= 1
    assert sum(targets) == max(writers, readers)  # no all-to-all traffic


@pytest.mark.parametrize(("kind", "pointwise"), [(k, k in ("forward", "rescale")) for k in KINDS])
def test_pointwise(kind, pointwise):
    assert Partitioning(kind).pointwise == pointwise
