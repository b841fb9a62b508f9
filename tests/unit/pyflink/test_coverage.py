"""What is covered of PyFlink's names is measured, and the page about it is up to date."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from headrace.cli.coverage import Name, coverage, only_raises, pyflink_names, reason_for
from headrace.cli.coverage import _difference as difference

ROOT = Path(__file__).parents[3]
OURS = ("datastream.connectors.", "datastream.formats.", "datastream.async_", "common.serialization")


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date():
    made = script("pyflink_coverage").page()
    assert (ROOT / "docs" / "pyflink.md").read_text() == made, "run python scripts/pyflink_coverage.py"


def test_the_list_has_the_names_of_pyflink():
    names = pyflink_names()
    members = [name for name in names if not name.is_class]
    assert len(members) == 1315
    assert len([name for name in members if not name.is_vendor]) == 1074
    assert Name("datastream.connectors.kafka", "KafkaSourceBuilder.set_topics", ("*topics",)) in names
    assert Name("datastream.functions", "RuntimeContext.get_state", ("state_descriptor",)) in names  # of a hidden base


def test_nine_of_ten_members_are_covered_and_the_rest_have_a_reason():
    members = [one for one in coverage() if not one.name.is_vendor and not one.name.is_class]
    missing = [one.name for one in members if one.problem]
    assert len(missing) <= len(members) / 10
    assert [str(name) for name in missing if reason_for(name) == "not built yet"] == []
    own = [str(name) for name in missing if name.module.startswith(OURS)]
    assert own == [
        "datastream.connectors.base.Source.__init__",
        "datastream.connectors.base.Sink.__init__",
        "datastream.connectors.file_system.FileSink.BaseBuilder.enable_compact",
        "datastream.formats.csv.CsvSchemaBuilder.set_any_property_name",
    ]


@pytest.mark.parametrize(
    ("theirs", "function", "problem"),
    [
        (("a", "b="), lambda a, b=1: None, None),
        (("a",), lambda a, more=1: None, None),
        (("a",), lambda a, more: None, "`more` is needed"),
        (("a",), lambda b: None, "no parameter `a`"),
        (("a", "b"), lambda b, a: None, "`a` at another place"),
        (("a=",), lambda a: None, "`a` has no default"),
        (("*a",), lambda *a: None, None),
        (("a",), lambda *args, **kwargs: None, None),
    ],
)
def test_parameters_are_compared(theirs, function, problem):
    assert difference(theirs, function) == problem


def test_a_member_that_only_raises_does_not_count():
    def refuses(self):
        """Not supported."""
        raise ValueError("no")

    def works(self):
        if self:
            raise ValueError("no")

    assert only_raises(refuses)
    assert not only_raises(works)
    (found,) = [one for one in coverage() if one.name.path == "FileSink.BaseBuilder.enable_compact"]
    assert found.problem == "it only raises"


def test_the_list_is_made_of_a_wheel(tmp_path, capsys):
    module = tmp_path / "pyflink" / "common" / "things.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "__all__ = ['Thing', 'do']\n"
        "class Thing(object):\n"
        "    SIZE = 1\n"
        "    _hidden = 2\n"
        "    def __init__(self, j_thing): pass\n"
        "    def get_java_thing(self): pass\n"
        "    def act(self, how, when=None, *more): pass\n"
        "    @staticmethod\n"
        "    def of(what): pass\n"
        "    @property\n"
        "    def name(self): pass\n"
        "    class Inner:\n"
        "        def __init__(self): pass\n"
        "class Other: pass\n"
        "def do(it, again=True): pass\n"
    )
    script("pyflink_names").main(tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "common.things:Thing",
        "common.things:Thing.SIZE",
        "common.things:Thing.act(how, when=, *more)",
        "common.things:Thing.of(what)",
        "common.things:Thing.name",
        "common.things:Thing.Inner",
        "common.things:Thing.Inner.__init__()",
        "common.things:do(it, again=)",
    ]
