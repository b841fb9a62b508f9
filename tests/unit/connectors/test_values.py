"""Bytes into records and back, whole batches at a time."""

import numpy as np
import pytest

from headrace import OutputTag
from headrace.connectors.values import CORRUPT_TYPE, CorruptRecord, CorruptRecords, decoder, encoder
from headrace.errors import HeadraceError, InvalidArgument
from headrace.records.batch import Batch
from headrace.records.types import as_type

PAIR = "word string, n bigint"


@pytest.mark.parametrize(
    ("format", "type", "values", "rows"),
    [
        ("text", None, [b"a", b"", "ä".encode()], ["a", "", "ä"]),
        ("bytes", None, [b"a", b"\xff"], [b"a", b"\xff"]),
        ("json", None, [b"1", b'{"a": [1]}', b"null"], [1, {"a": [1]}, None]),
        ("json", PAIR, [b'{"word": "a", "n": 1}', b'{\n"n": 2, "more": 5}'], [("a", 1), (None, 2)]),
        ("csv", PAIR, [b"a,1", b'"b,c",2', b",3", b'"",4'], [("a", 1), ("b,c", 2), (None, 3), ("", 4)]),
    ],
)
def test_decoded(format, type, values, rows):
    batch, corrupt = decoder(format, type).decode(values)
    assert batch.rows() == rows
    assert corrupt == []


@pytest.mark.parametrize(
    ("format", "type", "good", "bad"),
    [
        ("text", None, b"a", b"\xff\xfe"),
        ("json", None, b"1", b"{"),
        ("json", PAIR, b'{"word": "a", "n": 1}', b'{"word": "a", "n": "many"}'),
        ("json", PAIR, b'{"word": "a", "n": 1}', b'{"word": "a"'),
        ("json", PAIR, b'{"word": "a", "n": 1}', b'{"n": 1} {"n": 2}'),
        ("json", PAIR, b'{"word": "a", "n": 1}', b""),
        ("json", "word string, n bigint not null", b'{"word": "a", "n": 1}', b'{"word": "a"}'),
        ("csv", PAIR, b"a,1", b"a,x"),
        ("csv", PAIR, b"a,1", b"a,1,2"),
        ("csv", PAIR, b"a,1", b"a"),
    ],
)
@pytest.mark.parametrize("places", [{0}, {6}, {0, 1, 5}, set(range(7))])
def test_a_damaged_record_spoils_only_itself(format, type, good, bad, places):
    values = [bad if place in places else good for place in range(7)]
    batch, corrupt = decoder(format, type).decode(values)
    assert len(batch) == 7 - len(places)
    assert [one.index for one in corrupt] == sorted(places)
    assert all(one.data == bad and one.reason for one in corrupt)


def test_lines():
    assert decoder("csv", PAIR).decode_lines(b"a,1\r\nb,2\r\n", 2)[0].rows() == [("a", 1), ("b", 2)]
    assert decoder("json", PAIR).decode_lines(b'{"n": 1}\n\n{"n": 2}\n', 3)[0].rows() == [(None, 1), (None, 2)]
    assert decoder("text").decode_lines(b"a\n\nb", 3)[0].rows() == ["a", "", "b"]


def test_long_records_are_read():
    value = b'{"word": "' + b"x" * 3_000_000 + b'", "n": 1}'
    batch, corrupt = decoder("json", PAIR).decode([value, value])
    assert (len(batch), corrupt) == (2, [])


@pytest.mark.parametrize(
    ("format", "type", "rows", "lines"),
    [
        ("text", "bigint", [1, 2], b"1\n2\n"),
        ("json", PAIR, [("ä", 1), (None, None)], '{"word":"ä","n":1}\n{"word":null,"n":null}\n'.encode()),
        ("json", None, [{"a": 1}, [2], np.int64(3)], b'{"a":1}\n[2]\n3\n'),
        ("csv", PAIR, [("a,b", 1), (None, 2)], b'"a,b",1\n,2\n'),
        ("bytes", "binary", [b"x"], b"x\n"),
        ("text", None, [], b""),
    ],
)
def test_encoded(format, type, rows, lines):
    assert b"".join(line + b"\n" for line in encoder(format, type)(Batch.of_rows(rows, as_type(type)))) == lines


def test_csv_is_read_back_as_it_was():
    rows = [("a", 1), (None, 2), ("", 3), ('say "x"', None)]
    data = b"".join(line + b"\n" for line in encoder("csv", PAIR)(Batch.of_rows(rows, as_type(PAIR))))
    assert decoder("csv", PAIR).decode_lines(data, 4)[0].rows() == rows


def test_refusals():
    with pytest.raises(InvalidArgument, match="needs a type with named fields, for example"):
        decoder("csv")
    with pytest.raises(InvalidArgument, match="format 'text' gives string, not bigint; leave the type out"):
        decoder("text", "bigint")
    with pytest.raises(InvalidArgument, match="csv files hold a record a line: use json"):
        encoder("csv", PAIR)(Batch.of_rows([("a\nb", 1)], as_type(PAIR)))
    with pytest.raises(InvalidArgument, match="takes records that are bytes, got 'x'"):
        encoder("bytes")(Batch.of_rows(["x"]))
    with pytest.raises(InvalidArgument, match="S: on_corrupt must be 'fail', 'skip' or an OutputTag, got 'ignore'"):
        CorruptRecords("ignore", "S")


def test_what_is_done_with_corrupt_records():
    one = CorruptRecord(0, b"x" * 300, "no number")
    with pytest.raises(HeadraceError, match=r"S: line 3 cannot be read: no number; it is b'x+'\.\.\.\. Fix it, or set"):
        CorruptRecords("fail", "S").add("line 3", one)
    skipped = CorruptRecords("skip", "S")
    skipped.add("line 3", one)
    assert (skipped.count, skipped.take()) == (1, [])
    tag = OutputTag("corrupt", CORRUPT_TYPE)
    aside = CorruptRecords(tag, "S")
    aside.add("line 3", one)
    assert aside.take() == [(tag, ("line 3", "no number", one.data))]
    assert (aside.count, aside.take()) == (1, [])
