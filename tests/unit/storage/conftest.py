"""Stores of every scheme for the storage tests; Azure's, Google's and HDFS's servers only in the long tests."""

from __future__ import annotations

import fcntl
import uuid
from contextlib import ExitStack, contextmanager

import pytest

import object_servers
import s3_server
from headrace.storage.remote import open_store
from headrace.testing.storage_faults import MemoryStore

REMOTE = ["s3", *(pytest.param(name, marks=pytest.mark.long) for name in object_servers.SERVERS)]


@contextmanager
def one_at_a_time(directory):
    """Two processes of pytest that install a server into one directory leave half of it."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory


@pytest.fixture(scope="session")
def servers(request):
    """Starts the server of a scheme once: its options, and a directory there."""
    running = {}
    with ExitStack() as stack:

        def start(scheme):
            if scheme not in running:
                if scheme == "s3":
                    server, options = s3_server.start()
                    stack.callback(server.shutdown)
                    running[scheme] = {"s3": options}, s3_server.make_bucket(options, "race")
                else:
                    with one_at_a_time(request.config.cache.mkdir("servers")) as cache:
                        running[scheme] = stack.enter_context(object_servers.SERVERS[scheme](cache))
            return running[scheme]

        yield start


@pytest.fixture(params=REMOTE)
def remote(request, servers):
    """The options of a server, and an empty directory there."""
    options, directory = servers(request.param)
    return options, f"{directory}/{uuid.uuid4().hex}"


@pytest.fixture(params=["file", "memory", "dict", *REMOTE])
def place(request, tmp_path):
    """A store and an empty directory in it."""
    if request.param == "file":
        return open_store(), str(tmp_path)
    if request.param == "memory":
        return open_store(), f"memory://{uuid.uuid4().hex}"
    if request.param == "dict":
        return MemoryStore(), "/dict"
    options, directory = request.getfixturevalue("servers")(request.param)
    return open_store(options), f"{directory}/{uuid.uuid4().hex}"
