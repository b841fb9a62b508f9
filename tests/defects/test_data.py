"""Records, keys and state values keep what they are: each test is a defect that is known, or one that was cured.

A test of a defect that is still there is an expected failure with the defect's name. Only an AssertionError counts as
that failure, so an error of the test itself is not taken for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from headrace import Types
from headrace.connectors.values import CorruptRecord, decoder
from headrace.errors import InvalidArgument
from headrace.pyflink.common import Types as FlinkTypes
from headrace.records.types import as_type

PAIR = "word string, n bigint"


def in_process(program: str, *arguments: str) -> list[Any]:
    """What a program prints, a JSON value a line; the program runs in a process of its own, which may crash."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


# --- D1: a JSON null reaches pyarrow's reader, which crashes ----------------------------------------------------------

DECODE = """
import json, sys
from headrace.connectors.values import decoder
from headrace.pyflink.datastream.formats.json import JsonRows
from headrace.records.types import as_type

type = as_type("word string, n bigint")
lines = decoder("json", type)
decoders = {
    "values": decoder("json", type).decode,
    "lines": lambda values: lines.decode_lines(b"".join(value + b"\\n" for value in values), len(values)),
    "PyFlink": JsonRows(type, False, False).decode,
    "PyFlink, missing fields are refused": JsonRows(type, True, False).decode,
    "PyFlink, errors are ignored": JsonRows(type, False, True).decode,
}
for texts in json.loads(sys.argv[1]):
    for name, decode in decoders.items():
        batch, corrupt = decode([text.encode() for text in texts])
        print(json.dumps([texts, name, list(map(list, batch.rows())), [one.data.decode() for one in corrupt]]))
"""

GOOD = '{"word":"a","n":1}'


def test_a_json_null_is_a_corrupt_record():
    cases = [["null"], ["null", GOOD], [GOOD, "null"], [GOOD, "null", "{oops"]]
    cases += [[form] for form in (" null ", "null{}", "null1", "\ufeffnull", "null null", "true", "7", '"x"', "[{}]")]
    found = in_process(DECODE, json.dumps(cases))
    assert len(found) == 5 * len(cases)
    for texts, name, rows, corrupt in found:
        assert rows == [["a", 1]] * texts.count(GOOD), name
        assert corrupt == [text for text in texts if text != GOOD], name


def test_a_json_null_is_reported_as_no_object():
    _, (corrupt,) = decoder("json", PAIR).decode([GOOD.encode(), b"null"])
    assert corrupt == CorruptRecord(1, b"null", "it is not a JSON object, which begins with '{' and ends with '}'")


JOB = """
import json, sys
from headrace import StreamExecutionEnvironment
from headrace.connectors.files import FileSource
env = StreamExecutionEnvironment.local()
source = FileSource(sys.argv[1], "json", "word string, n bigint", on_corrupt="skip")
with env.from_source(source).execute_and_collect() as records:
    for record in records:
        print(json.dumps(record))
"""


def test_a_job_skips_json_nulls_in_a_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'null\n{"word":"a","n":1}\nnull\n{oops\n{"word":"b","n":2}\n')
    assert in_process(JOB, str(path)) == [["a", 1], ["b", 2]]


# --- D10: records without columns vanish ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Types.TUPLE([]),
        lambda: Types.ROW([]),
        lambda: Types.ROW_NAMED([], []),
        lambda: FlinkTypes.ROW([]),
        lambda: FlinkTypes.TUPLE([]),
        lambda: FlinkTypes.TUPLE([FlinkTypes.TUPLE([]), FlinkTypes.INT()]),
        lambda: as_type("struct<>"),
        lambda: as_type(pa.schema([])),
        lambda: as_type(pa.struct([])),
    ],
)
def test_a_type_without_fields_is_refused(make):
    with pytest.raises(InvalidArgument, match=r"type without fields cannot hold records.*leave the type out"):
        make()
