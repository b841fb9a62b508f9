"""Asynchronous calls on Spark: the event loop has a thread of its own, and killed workers cost no record."""

import asyncio

from spark_kit import wait_until
from test_checkpoints import (
    INPUT,
    OUTPUT,
    Number,
    assert_exactly_once,
    checkpointed,
    completed,
    kill_after_checkpoints,
    numbers,
    release,
)

from headrace.connectors.files import FileSink


async def later(record):
    await asyncio.sleep(record.v % 20 / 1000)
    return record


def build_async(env, directory, ordered=False):
    slow = numbers(env, directory).map_async(later, 30_000, INPUT, capacity=50, ordered=ordered).uid("slow")
    numbered = slow.key_by("k").process(Number(), output_type=OUTPUT).uid("number")
    numbered.rebalance().sink_to(FileSink(f"{directory}/out", "json")).uid("out")


def test_killed_workers_cost_no_record(make_env, workers, tmp_path):  # SPEC R14.1
    env = checkpointed(make_env(2), tmp_path)
    build_async(env, tmp_path)
    client = env.execute_async("calls")
    kill_after_checkpoints(client.job, [(0, 0), (0, 1)])
    release(tmp_path)
    client.wait(120)
    assert client.job.restarts >= 1
    assert_exactly_once(tmp_path)


def test_what_is_in_flight_goes_into_a_savepoint(make_env, workers, tmp_path):  # SPEC R14.1
    env = checkpointed(make_env(2), tmp_path)
    build_async(env, tmp_path, ordered=True)
    client = env.execute_async("calls")
    assert client.job.wait_running(120)
    wait_until(lambda: completed(client.job) > 1, "checkpoints")
    path = client.stop_with_savepoint(savepoint_directory=f"file://{tmp_path}/savepoints")
    client.wait(120)
    env = checkpointed(make_env(3, {"execution.state-recovery.path": path}), tmp_path)
    build_async(env, tmp_path, ordered=True)
    release(tmp_path)
    env.execute_async("go on").wait(120)
    assert_exactly_once(tmp_path)
