"""The dashboard for Grafana and the alert rules name only what REST exports."""

import json
import re
from pathlib import Path

import pytest
import yaml

from headrace.control.messages import Metrics
from rest_kit import FakeJob, client_of

DEPLOY = Path(__file__).parents[3] / "deploy"
ROCKSDB = ("block-cache-usage", "cur-size-all-mem-tables", "num-running-compactions", "compaction-pending")


@pytest.fixture
def exported():
    """The names of all metrics of a job that has everything: event time, RocksDB, a sink that commits."""
    job = FakeJob()
    figures = {"commits": 1.0, "commitTime": 5.0, "lastCommitTime": 5.0} | {f"rocksdb.{name}": 1.0 for name in ROCKSDB}
    for vertex in job.plan.graph.vertices:
        job.counters[vertex.id] = [Metrics(watermark=5, operators={str(vertex.head.id): figures})]
    return set(re.findall(r"^# TYPE (\S+)", client_of(job).get("/metrics/prometheus").text, re.MULTILINE))


def names_in(expression):
    return set(re.findall(r"\b(?:flink|headrace)_\w+", expression))


def test_every_query_of_the_dashboard_names_an_exported_metric(exported):
    dashboard = json.loads((DEPLOY / "grafana" / "headrace.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(queries) > 25
    for query in queries:
        assert names_in(query), query
        assert names_in(query) <= exported, query
    for variable in dashboard["templating"]["list"]:
        assert names_in(variable["query"]) <= exported


def test_every_alert_rule_names_an_exported_metric(exported):
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    assert len(group["rules"]) >= 8
    for rule in group["rules"]:
        assert names_in(rule["expr"]), rule
        assert names_in(rule["expr"]) <= exported, rule
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_scrape_configuration_names_our_path():
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert config["scrape_configs"][0]["metrics_path"] == "/metrics/prometheus"


def test_every_alert_rule_has_a_test_in_which_it_fires():
    """`promtool test rules` runs them, in the line "prometheus" of `make test-long`."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text())["tests"]
    fired = {re.search(r'alertname="(\w+)"', one["promql_expr_test"][1]["expr"])[1] for one in tests}
    assert fired == {rule["alert"] for rule in rules}
    assert all(one["promql_expr_test"][1]["exp_samples"] for one in tests)
