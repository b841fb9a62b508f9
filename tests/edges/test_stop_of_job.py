"""A stop that fails leaves a job that goes on as if nobody had asked."""

import pytest
from edge_kit import counted

from headgate.errors import HeadgateError


# SPEC R8.3
@pytest.mark.parametrize(
    "drain",
    [
        pytest.param(
            True,
            marks=pytest.mark.xfail(
                strict=True,
                reason="sources stay at the end of their data when a drain is aborted, so the rest of the input is lost",
            ),
        ),
        False,
    ],
    ids=["drain", "suspend"],
)
def test_a_stop_whose_savepoint_fails_loses_no_input(cluster, drain):
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    job.feed(50)
    job.storage.fail_next_write("_metadata")
    with pytest.raises(HeadgateError, match="the disk is broken"):
        job.stop(cluster.savepoints, drain=drain)
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))
