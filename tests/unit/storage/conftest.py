"""Stores of every scheme for the storage tests; S3 is moto's, and skipped where moto or s3fs is not installed."""

from __future__ import annotations

import uuid

import pytest

import s3_server
from headgate.storage.remote import open_store
from headgate.testing.storage_faults import MemoryStore

SCHEMES = ["file", "memory", "s3", "dict"]


@pytest.fixture(scope="session")
def s3_options():
    server, options = s3_server.start()
    yield {"s3": options}
    server.shutdown()


@pytest.fixture(scope="session")
def s3_bucket(s3_options):
    return s3_server.make_bucket(s3_options["s3"], "race")


@pytest.fixture(params=SCHEMES)
def place(request, tmp_path):
    """A store and an empty directory in it."""
    if request.param == "s3":
        options, bucket = request.getfixturevalue("s3_options"), request.getfixturevalue("s3_bucket")
        return open_store(options), f"{bucket}/{uuid.uuid4().hex}"
    if request.param == "dict":
        return MemoryStore(), "/dict"
    return open_store(), str(tmp_path) if request.param == "file" else f"memory://{uuid.uuid4().hex}"
