"""Drivers that race for a job log on real servers, and replies that are lost: exactly one driver goes on."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections import Counter

import fsspec.config
import pytest
from storage_drivers import drive
from storage_jobs import JOB, PRELOAD, take

from headrace.errors import StorageError
from headrace.storage import cloud
from headrace.storage.cloud import _aws_credentials
from headrace.storage.layout import AttemptId, JobLayout
from headrace.storage.log import JobLog, SupersededError, read_log
from headrace.storage.objects import MissingObject, OutcomeUnknown
from headrace.storage.remote import open_store
from object_servers import LossyProxy

DRIVERS, ROUNDS = 4, 5


def test_of_drivers_in_several_processes_one_completes_a_checkpoint(remote):
    options, directory = remote
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)  # as Spark's daemon loads packages before it forks workers
    start, results = context.Barrier(DRIVERS), context.Queue()
    arguments = [(options, directory, number, ROUNDS, start, results) for number in range(DRIVERS)]
    processes = [context.Process(target=drive, args=each) for each in arguments]
    for process in processes:
        process.start()
    completed = Counter(round_ for _ in processes for round_ in results.get(timeout=120))
    for process in processes:
        process.join()
    assert completed == Counter(range(ROUNDS)), "exactly one driver of each job"
    for round_ in range(ROUNDS):
        found = read_log(open_store(options), JobLayout.of(f"{directory}/{round_}", JOB))
        assert len(found.retained) == 1


@pytest.fixture
def lossy(remote):
    """A store behind a proxy that can lose replies; `lose` loses those to the request that creates."""
    options, directory = remote
    text = json.dumps([options, directory])
    (port,) = set(re.findall(r"127\.0\.0\.1:(\d+)", text))
    proxy = LossyProxy(int(port))
    options, directory = json.loads(text.replace(f":{port}", f":{proxy.port}"))
    # On HDFS the temporary file comes first: its data node's address is a reply of the name node.
    before = 1 if directory.startswith("webhdfs") else 0
    yield open_store(options), directory, lambda count: proxy.lose(count, before)
    proxy.close()


def test_a_writer_knows_its_own_object_when_the_reply_is_lost(lossy):
    store, directory, lose = lossy
    lose(1)
    assert store.create_if_absent(f"{directory}/a", b"1")
    assert not store.create_if_absent(f"{directory}/a", b"1")
    lose(1)
    assert not store.create_if_absent(f"{directory}/a", b"1"), "equal content is still another's object"
    assert store.list_names(directory) == ["a"]


def test_a_writer_that_hears_nothing_does_not_know(lossy):
    store, directory, lose = lossy
    store.put(f"{directory}/b", b"")
    lose(1 << 30)
    with pytest.raises(OutcomeUnknown, match=f"whether '{directory}/a' was created"):
        store.create_if_absent(f"{directory}/a", b"1")
    lose(0)
    assert store.list_names(directory)[-1] == "b"


def test_a_driver_whose_claim_got_no_reply_looks_and_goes_on(lossy):
    store, directory, lose = lossy
    layout = JobLayout.of(directory, JOB)
    log = JobLog.start(store, layout, "race", clock=lambda: 1000)
    first = take(store, 1, log.attempt(0), layout)
    lose(1)
    assert log.complete(first).commit == 2
    rival = JobLog.start(store, layout, "race", clock=lambda: 1000, restored=read_log(store, layout).retained[0])
    second = take(store, 2, log.attempt(0), layout)
    lose(1)
    with pytest.raises(SupersededError):
        log.complete(second)
    assert rival.complete(take(store, 3, AttemptId(2), layout)).commit == 4


def test_a_writer_that_cannot_look_whose_object_it_met_does_not_know(monkeypatch):
    # obstore may have repeated the put: the object can be its own.
    def unreachable(*_):
        raise ConnectionError("no route")

    store = open_store()
    store.put("memory://looking/a", b"1")
    monkeypatch.setattr(cloud.obstore, "get", unreachable)
    monkeypatch.setattr(cloud, "_CONFLICT_PAUSE_SECONDS", 0)
    with pytest.raises(OutcomeUnknown, match="cannot tell who created 'memory://looking/a'"):
        store.create_if_absent("memory://looking/a", b"2")


def test_a_bucket_that_does_not_exist_is_certain(servers):
    options, _ = servers("s3")
    with pytest.raises(MissingObject, match="cannot create 's3://no-such-bucket/a'"):
        open_store(options).create_if_absent("s3://no-such-bucket/a", b"1")


def test_no_secret_is_in_an_error(servers):
    options, _ = servers("s3")
    unreachable = {"s3": options["s3"] | {"endpoint_url": "http://127.0.0.1:9", "secret": "hunter2"}}
    with pytest.raises(StorageError) as caught:
        open_store(unreachable).read("s3://bucket/a")
    assert "hunter2" not in str(caught.value)
    assert "Debug" not in str(caught.value)


def test_credentials_of_a_profile_in_the_files_of_aws(servers, tmp_path, monkeypatch):
    options, bucket = servers("s3")
    (tmp_path / "credentials").write_text("[job]\naws_access_key_id = someone\naws_secret_access_key = hunter2\n")
    (tmp_path / "config").write_text("[profile job]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    config = {}
    found = _aws_credentials("job", config)()
    assert (found["access_key_id"], found["secret_access_key"], config) == (
        "someone",
        "hunter2",
        {"region": "us-east-1"},
    )
    store = open_store({"s3": {"endpoint_url": options["s3"]["endpoint_url"], "profile": "job"}})
    store.put(f"{bucket}/profile", b"1")
    assert store.read(f"{bucket}/profile") == b"1"


def test_options_of_fsspec_are_taken(servers, monkeypatch):
    options, bucket = servers("s3")
    monkeypatch.setitem(fsspec.config.conf, "s3", options["s3"])
    open_store().put(f"{bucket}/configured", b"1")
    assert open_store(options).read(f"{bucket}/configured") == b"1"


@pytest.mark.long
def test_azure_under_the_name_that_hadoop_has_for_it(servers):
    options, directory = servers("az")
    store = open_store({"abfss": {key: value for key, value in options["az"].items() if key != "account_name"}})
    assert store.create_if_absent("abfss://race@devstoreaccount1.dfs.core.windows.net/hadoop", b"1")
    assert open_store(options).read(f"{directory}/hadoop") == b"1"
