"""Stores of every scheme for the storage tests; S3 is moto's, and skipped where moto or s3fs is not installed."""

from __future__ import annotations

import os
import threading
import uuid

import pytest

from headgate.storage.faults import MemoryStore
from headgate.storage.remote import open_store

SCHEMES = ["file", "memory", "s3", "dict"]


@pytest.fixture(scope="session")
def s3_options():
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ, start_response):
        # S3 applies a conditional put atomically. moto looks first and writes later, so its requests must not overlap.
        with lock:
            return [b"".join(app(environ, start_response))]

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "testing")
    client = {"endpoint_url": f"http://127.0.0.1:{server.port}", "client_kwargs": {"region_name": "us-east-1"}}
    yield {"s3": {"key": "testing", "secret": "testing", **client}}
    server.shutdown()


@pytest.fixture(scope="session")
def s3_bucket(s3_options):
    import fsspec

    fsspec.filesystem("s3", **s3_options["s3"]).call_s3("create_bucket", Bucket="race")
    return "s3://race"


@pytest.fixture(params=SCHEMES)
def place(request, tmp_path):
    """A store and an empty directory in it."""
    if request.param == "s3":
        options, bucket = request.getfixturevalue("s3_options"), request.getfixturevalue("s3_bucket")
        return open_store(options), f"{bucket}/{uuid.uuid4().hex}"
    if request.param == "dict":
        return MemoryStore(), "/dict"
    return open_store(), str(tmp_path) if request.param == "file" else f"memory://{uuid.uuid4().hex}"
