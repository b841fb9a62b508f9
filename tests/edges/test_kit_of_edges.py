"""A job in the kit lives as one on Spark does: what the other tests here rest on."""

from edge_kit import counted


def test_a_job_that_nothing_happens_to_shows_every_record_once(cluster):
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    assert cluster.comes_to_show(counted(range(100)))
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


def test_a_worker_that_dies_and_a_driver_that_is_replaced_change_nothing(cluster):
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    job.feed(100)
    job.kill_worker()
    assert job.running()
    job.feed(50)
    job.kill_driver()
    resumed = cluster.resume()
    assert resumed.running()
    assert resumed.position == 100
    resumed.feed_rest()
    assert resumed.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))
