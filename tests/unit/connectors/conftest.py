"""An S3 bucket for the tests of connectors."""

import fsspec
import pytest

import s3_server


@pytest.fixture(scope="session")
def s3_bucket():
    """A bucket that fsspec finds without further options, as with its own configuration files."""
    server, options = s3_server.start()
    before = dict(fsspec.config.conf)
    fsspec.config.conf["s3"] = options
    yield s3_server.make_bucket(options, "files")
    fsspec.config.conf.clear()
    fsspec.config.conf.update(before)
    server.shutdown()
