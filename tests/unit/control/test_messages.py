"""The control plane's messages survive their encoding, and nothing else is taken for one."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.checkpoint.reasons import FailureReason
from headrace.control import messages as m

_VALUES = {
    int: st.integers(0, (1 << 63) - 1),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
}


def _strategy(kind):
    hints = typing.get_type_hints(kind)
    fields = {}
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        if hint not in _VALUES:
            if field.required:
                return None  # nested data: tested where it is made
            continue
        fields[field.name] = _VALUES[hint]
    return st.builds(kind, **fields)


def _plain(union):
    return [kind for kind in typing.get_args(union) if _strategy(kind) is not None]


@pytest.mark.parametrize("kind", _plain(m.FromWorker), ids=lambda k: k.__name__)
@given(data=st.data())
def test_a_workers_messages(kind, data):
    message = data.draw(_strategy(kind))
    assert m.decode_from_worker(m.encode(message)) == message


@pytest.mark.parametrize("kind", _plain(m.FromDriver), ids=lambda k: k.__name__)
@given(data=st.data())
def test_the_drivers_messages(kind, data):
    message = data.draw(_strategy(kind))
    assert m.decode_from_driver(m.encode(message)) == message


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (m.Failed("bad \udcff", "trace \ud800", "op", key="\udc80"), "bad \\udcff"),
        (m.RecordSample(1, ["whole", "\udcff"]), "\\udcff"),
        (m.Metrics(user={"\udcff": 1.0}, operators={"a": {"b": 2.0}}), "\\udcff"),
        (m.DeclineCheckpoint(1, FailureReason.CHECKPOINT_DECLINED, "\udcff"), "\\udcff"),
        (m.StackSample(1, {"f\udcff": 2}, {}), "f\\udcff"),
    ],
)
def test_text_that_utf8_cannot_carry_is_escaped(message, text):
    """An error here would end the stream, and so the worker, and nothing would tell why."""
    found = m.decode_from_worker(m.encode(message))
    assert type(found) is type(message)
    assert text in repr(found).replace("\\\\", "\\")


def test_bytes_stay_bytes_beside_text_that_is_escaped():
    message = m.Output("\udcff", b"\xff\x00", 3)
    assert m.decode_from_worker(m.encode(message)) == m.Output("\\udcff", b"\xff\x00", 3)


def test_a_message_in_the_wrong_direction():
    with pytest.raises(msgspec.ValidationError):
        m.decode_from_driver(m.encode(m.Running()))
    with pytest.raises(msgspec.ValidationError):
        m.decode_from_worker(m.encode(m.Ping()))


@given(st.binary(max_size=30))
def test_noise_is_refused(noise):
    with pytest.raises(msgspec.MsgspecError):
        m.decode_from_worker(noise)


def test_most_messages_are_covered():
    assert len(_plain(m.FromWorker)) >= 6
    assert len(_plain(m.FromDriver)) >= 4
