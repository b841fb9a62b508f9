"""`headrace migrate`: the roots of imports change, and what is not supported is listed with its line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.cli.migration import migrate
from headrace.errors import InvalidArgument

PROGRAM = '''\
"""Counts words, as pyflink does."""
import pyflink.common as c, os
from pyflink.common import (
    Types,
)
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.kafka import KafkaSource
import pyflink.datastream.window

from pyflink_tools import own

env = StreamExecutionEnvironment.get_execution_environment()
size = pyflink.datastream.window.TimeWindow(0, 1)
note = "pyflink is a word here"
'''

CHANGED = (
    PROGRAM.replace("import pyflink.", "import headrace.pyflink.")
    .replace("from pyflink.", "from headrace.pyflink.")
    .replace("size = pyflink.", "size = headrace.pyflink.")
)


def test_roots_of_imports_change_and_nothing_else():
    done = migrate(PROGRAM)
    assert done.text == CHANGED
    assert done.unsupported == ()
    compile(done.text, "program", "exec")
    assert migrate(CHANGED).text == CHANGED  # what is done is done


def test_names_behind_other_characters():
    text = "x = 'ä'; from pyflink.common import Row\n"
    assert migrate(text).text == "x = 'ä'; from headrace.pyflink.common import Row\n"
    assert migrate("if True: import pyflink.common\n").text == "if True: import headrace.pyflink.common\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from pyflink.table import StreamTableEnvironment", (1, "pyflink.table.StreamTableEnvironment", "use Spark SQL")),
        ("from pyflink.table.udf import udf", (1, "pyflink.table.udf", "Headrace has the DataStream API only")),
        ("\nimport pyflink.table.udf", (2, "pyflink.table.udf", "Headrace has the DataStream API only")),
        ("from pyflink.datastream.connectors.pulsar import PulsarSource", (1, "pyflink.datastream.connectors.pulsar", "data source")),
        ("from pyflink.datastream.connectors import rabbitmq", (1, "pyflink.datastream.connectors.rabbitmq", "write a source")),
        ("from pyflink.java_gateway import get_gateway", (1, "pyflink.java_gateway", "there is no Java")),
        ("from pyflink.datastream import (\n  DataStream,\n  Nothing)", (3, "pyflink.datastream.Nothing", "docs/pyflink.md")),
        ("sink = (builder\n  .enable_compact(a, b))", (2, ".enable_compact of FileSink.BaseBuilder", "longer checkpoint interval")),
        ("m = __import__('pyflink.common')", (1, "the text 'pyflink.common'", "put 'headrace.pyflink' in its place")),
    ],
)  # fmt: skip
def test_what_is_not_supported(text, found):
    (one,) = migrate(text + "\n").unsupported
    line, what, instead = found
    assert (one.line, one.what) == (line, what)
    assert instead in one.instead
    assert str(one).startswith(f"line {line}: {what}: ")


def test_a_file_that_is_no_program():
    with pytest.raises(InvalidArgument, match=r"job\.py is not a Python program"):
        migrate("from x import (", "job.py")


def test_the_command_prints_a_diff(tmp_path):
    program = tmp_path / "job.py"
    program.write_text("from pyflink.common import Row\nfrom pyflink.table import Table\n")
    done = CliRunner().invoke(app, ["migrate", str(program)])
    assert done.exit_code == 1
    assert "-from pyflink.common import Row\n" in done.stdout
    assert "+from headrace.pyflink.common import Row\n" in done.stdout
    assert f"{program}:2: pyflink.table.Table: Headrace has the DataStream API only" in done.stderr
    assert "1 of 1 files to change, 1 uses of what is not supported" in done.stderr
    assert program.read_text().startswith("from pyflink.common")  # it is not changed


def test_the_command_writes(tmp_path):
    (tmp_path / "below").mkdir()
    program = tmp_path / "below" / "job.py"
    program.write_text("from pyflink.common import Row\n")
    done = CliRunner().invoke(app, ["migrate", "--write", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert program.read_text() == "from headrace.pyflink.common import Row\n"
    assert "1 of 1 files changed, 0 uses of what is not supported" in done.stderr


def test_the_command_without_files(tmp_path):
    assert CliRunner().invoke(app, ["migrate", str(tmp_path / "none.py")]).exit_code == 1
    done = CliRunner().invoke(app, ["migrate", str(tmp_path)])
    assert done.exit_code == 1
    assert "there is no Python file in" in done.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from \\\n  pyflink.common import Row\n", "from \\\n  headrace.pyflink.common import Row\n"),
        ("x = 1\n\x0cfrom pyflink.common import Row\n", "x = 1\n\x0cfrom headrace.pyflink.common import Row\n"),
        ("x = 'a\u2028b\x0b'\nimport pyflink.common\n", "x = 'a\u2028b\x0b'\nimport headrace.pyflink.common\n"),
        ("\ufefffrom pyflink.common import Row\n", "\ufefffrom headrace.pyflink.common import Row\n"),
        ("import os\r\nfrom pyflink.common import Row\r\n", "import os\r\nfrom headrace.pyflink.common import Row\r\n"),
        ("import pyflink.datastream as ds\nds.X\n", "import headrace.pyflink.datastream as ds\nds.X\n"),
        ("from pyflink.common import *\n", "from headrace.pyflink.common import *\n"),
        ("from .pyflink import a\nfrom . import pyflink\npyflink.b\n", None),
        ('"""pyflink.common is a module"""\n', None),
    ],
)
def test_odd_files(text, expected):
    done = migrate(text)
    assert done.text == (expected or text)
    assert done.unsupported == ()


@pytest.mark.parametrize(
    ("text", "what", "instead"),
    [
        ("stream.cache()", ".cache of DataStream", "write them to files"),
        ("env._j_stream_execution_environment", "._j_stream_execution_environment", "there is no Java behind"),
        ("name = f'pyflink.{part}'", "the text 'pyflink.'", "put 'headrace.pyflink' in its place"),
    ],
)
def test_members_and_texts_that_are_not_supported(text, what, instead):
    (one,) = migrate(text + "\n").unsupported
    assert one.what == what
    assert instead in one.instead


def test_null_bytes_are_no_program():
    with pytest.raises(InvalidArgument, match=r"job\.py is not a Python program: .*null bytes"):
        migrate("x = '\0'\n", "job.py")


def test_the_command_keeps_ends_of_lines_and_the_encoding(tmp_path):
    program = tmp_path / "latin.py"
    program.write_bytes("# coding: latin-1\r\nfrom pyflink.common import Row  # \xe9\r\n".encode("latin-1"))
    assert CliRunner().invoke(app, ["migrate", "--write", str(program)]).exit_code == 0
    assert program.read_bytes() == (
        "# coding: latin-1\r\nfrom headrace.pyflink.common import Row  # \xe9\r\n".encode("latin-1")
    )


def test_the_command_skips_what_is_no_program_and_what_belongs_to_others(tmp_path):
    (tmp_path / "bad.py").write_text("print 'x'\n")
    (tmp_path / "bytes.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "good.py").write_text("from pyflink.common import Row\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "lib.py").write_text("from pyflink.common import Row\n")
    done = CliRunner().invoke(app, ["migrate", "--write", str(tmp_path)])
    assert done.exit_code == 1
    assert (tmp_path / "good.py").read_text() == "from headrace.pyflink.common import Row\n"
    assert (tmp_path / ".venv" / "lib.py").read_text() == "from pyflink.common import Row\n"
    assert "bad.py is not a Python program" in done.output
    assert "bytes.py cannot be read" in done.output
    assert "1 of 3 files changed, 2 skipped, 0 uses of what is not supported" in done.output
