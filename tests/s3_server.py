"""An S3 server of our own for tests: moto's, in this process, at a port that every process of the machine reaches."""

from __future__ import annotations

import os
import threading

import fsspec
import pytest


def start():
    """The server and fsspec's options for it; the test is skipped where moto or s3fs is not installed."""
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
    return server, {"key": "testing", "secret": "testing", **client}


def make_bucket(options, name):
    """A new bucket; its address."""
    fsspec.filesystem("s3", **options).call_s3("create_bucket", Bucket=name)
    return f"s3://{name}"
