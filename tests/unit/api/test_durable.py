"""Stored values have tags: they outlive the modules of their classes."""

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from headrace.api.durable import durable, pack, to_text, unpack
from headrace.api.sources import NumberRange, Stride
from headrace.connectors.files.formats import FilePart, FileSplit
from headrace.connectors.files.source import FilesFound
from headrace.connectors.files.targets import PreparedFile
from headrace.connectors.kafka.commit import KafkaCommittable
from headrace.connectors.kafka.source import KafkaSplit, PartitionsFound
from headrace.connectors.spark.source import OffsetSplit, PartitionSplit, RoundsPlanned
from headrace.driver.enumerators import SplitsFound
from headrace.errors import InvalidArgument, StateMigrationError

OURS = [
    NumberRange(-5, (1 << 63) - 1),
    Stride(3, 16, 7),
    FileSplit((FilePart("/a", 10, 5.25, 0, 10, 3), FilePart("/b", 1, "etag", 0, None))),
    FilesFound({"/a": (10, 5.25), "/b": (1, "etag")}),
    KafkaSplit("orders", 2, 17, None),
    PartitionsFound(True, frozenset({("orders", 0), ("orders", 1)})),
    PartitionSplit(1, b"\x80\x05", 4),
    OffsetSplit('{"n":1}', None, 0),
    RoundsPlanned('{"n":1}', False),
    SplitsFound('["plain",null]', ["x"], True),
    PreparedFile("/out/part-0", "upload", ("etag-1", "etag-2")),
    PreparedFile("/t/p", "/t/p", (), 10, 900, {"day": None}),
    KafkaCommittable("id", "topic", "ab12", 3, 0, [b"k", None], [b"\xff" * 300, None]),
]
PLAIN = [None, True, False, 0, -(1 << 63) + 1, 1 << 70, 1.5, "text", b"bytes", (1, "a"), [1], {"a": (1, 2)}, {1, 2}]


@dataclass
class UserSplit:
    n: int


@pytest.mark.parametrize("value", [*OURS, *PLAIN, UserSplit(3), (UserSplit(1), 2.5)], ids=lambda v: str(v)[:30])
def test_a_value_comes_back_as_it_was(value):
    for again in (unpack(to_text(value)), unpack(pack(value))):
        assert again == value
        assert type(again) is type(value)


@pytest.mark.parametrize("value", OURS, ids=lambda value: type(value).__name__)
def test_ours_have_a_tag_with_a_version_and_no_path(value):
    stored = to_text(value)
    assert stored.startswith(f'["{type(value)._durable_tag}",{{"')
    assert type(value)._durable_tag.rpartition("-")[2].isdigit()
    assert "headrace" not in stored


def test_what_holds_many_bytes_is_stored_as_such():
    assert len(pack(OURS[-1])) < len(to_text(OURS[-1])) - 90
    assert isinstance(pack(UserSplit(3)), bytes)
    assert isinstance(pack(OURS[0]), str)


def test_an_unknown_tag_is_refused():
    message = (
        "has the tag 'pulsar-split-7', which is unknown here: a newer version of headrace wrote it, or a connector"
    )
    with pytest.raises(StateMigrationError, match=message):
        unpack('["pulsar-split-7",{"topic":"a"}]')
    with pytest.raises(StateMigrationError, match="pulsar-split-7"):
        unpack(msgspec.msgpack.encode(["pulsar-split-7", {}]))


@pytest.mark.parametrize("tag", ["kafka-split-1", "plain", "pickle"])
def test_a_tag_belongs_to_one_class(tag):
    with pytest.raises(TypeError, match=f"UserSplit: the tag '{tag}' belongs to"):
        durable(tag)(UserSplit)


def test_a_field_that_came_later_has_its_default():
    assert unpack('["stride-1",{"first":3,"step":16}]') == Stride(3, 16, 0)


def test_a_subclass_does_not_inherit_the_tag():
    class More(Stride, frozen=True):
        extra: int = 0

    assert to_text(More(1, 2)).startswith('["pickle",')


def test_a_class_of_a_script_has_its_tag_on_workers_too(tmp_path):
    """Workers get such a class by value, so its decorator never runs there."""
    script = """
        from dataclasses import dataclass
        import cloudpickle, sys
        from headrace.api.durable import durable, to_text
        @durable("script-page-1")
        @dataclass
        class Page:
            number: int
        def read(text):
            from headrace.api.durable import unpack, to_text
            page = unpack(text)
            assert type(page) is Page
            return to_text(Page(page.number + 1))
        sys.stdout.write(cloudpickle.dumps(read).hex() + " " + to_text(Page(3)))
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    function, text = subprocess.check_output([sys.executable, tmp_path / "script.py"], text=True).split(" ", 1)
    worker = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1]))(sys.argv[2]))"
    answer = subprocess.check_output([sys.executable, "-c", worker, function, text], text=True)
    assert answer == '["script-page-1",{"number":4}]\n'


@durable("test-reading-1")
@dataclass
class Reading:
    value: float
    note: Any = None


@pytest.mark.parametrize(
    "value", [Reading(float("nan")), Reading(float("inf")), Reading(1.0, (1, 2)), Reading(1.0, b"x")]
)
def test_a_value_that_could_not_be_restored_is_refused_when_it_is_stored(value):
    with pytest.raises(InvalidArgument, match="test-reading-1"):
        to_text(value)


def test_a_value_that_can_be_restored_is_stored():
    assert unpack(to_text(Reading(1.5, "x"))) == Reading(1.5, "x")
