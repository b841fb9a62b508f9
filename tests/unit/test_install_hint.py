"""The command in errors about a package that is missing names what is installed, never a distribution of an index."""

import importlib.metadata
import json

import pytest

from headrace.errors import install_hint

REQUIRES = [
    "numpy",
    'confluent-kafka; extra == "kafka"',
    'pandas<3,>=2.2; extra == "kafka"',
    'headrace[kafka]; extra == "dev"',
]


class Installed:
    requires = REQUIRES

    def __init__(self, origin):
        self.origin = origin

    def read_text(self, name):
        assert name == "direct_url.json"
        return self.origin and json.dumps(self.origin)


@pytest.fixture
def installed(monkeypatch):
    def install(origin):
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(origin))

    return install


def test_a_checkout(installed, tmp_path):
    installed({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert install_hint("kafka") == f"pip install -e '{tmp_path}[kafka]'"
    installed({"url": tmp_path.as_uri(), "dir_info": {}})
    assert install_hint("kafka") == f"pip install '{tmp_path}[kafka]'"


def test_a_wheel(installed, tmp_path):
    wheel = tmp_path / "a b" / "headrace-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    installed({"url": wheel.as_uri(), "archive_info": {}})
    assert install_hint("kafka") == f"pip install '{wheel}[kafka]'"


def test_a_repository(installed):
    installed({"url": "https://host/h.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    assert install_hint("s3") == "pip install 'headrace[s3] @ git+https://host/h.git@abc'"


@pytest.mark.parametrize("origin", [None, {"url": "file:///no/such/wheel.whl"}, {"url": "https://host/headrace.whl"}])
def test_an_installation_whose_origin_is_gone_names_the_packages(installed, origin):
    installed(origin)
    assert install_hint("kafka") == "pip install confluent-kafka 'pandas<3,>=2.2'"


def test_a_source_tree_that_is_not_installed(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert install_hint("kafka") == "install the packages of the extra 'kafka' in Headrace's pyproject.toml"
