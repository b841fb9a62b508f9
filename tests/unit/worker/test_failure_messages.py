"""From an exception in a worker to one message: the user's line first, then what was worked on."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.control.messages import Failed, decode_from_worker, encode
from headrace.errors import UserCodeError, WorkerLost
from headrace.records.types import TypeMismatch
from headrace.worker.failures import NO_KEY, OperatorFailure, describe, user_line


def raised(call, *args):
    try:
        call(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def innermost():
    return json.loads("{broken")


def line_of(function, offset):
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


def test_the_innermost_line_of_the_users_own_code():
    error = raised(innermost)
    assert user_line(error.__traceback__) == line_of(innermost, 1)


def test_code_of_the_library_and_of_headrace_is_not_the_users():
    assert user_line(raised(json.loads, "{broken").__traceback__).startswith(__file__)  # only the caller is
    assert user_line(raised(functools.partial(int, "x")).__traceback__).startswith(__file__)
    trace = raised(json.loads, "{broken").__traceback__.tb_next
    assert user_line(trace) == ""
    assert user_line(None) == ""


def compute():
    return pa.array(["x"]).cast(pa.int64())


def test_frames_of_compiled_code_are_not_the_users():
    """pyarrow's Cython frames name files like pyarrow/error.pxi, which exist nowhere."""
    assert user_line(raised(compute).__traceback__) == line_of(compute, 1)


def test_a_package_that_only_starts_like_ours_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.worker.failures._OURS", f"{tmp_path / 'headrace'}{os.sep}")
    plugin = tmp_path / "headrace_plugin.py"
    plugin.write_text("def fail():\n    raise ValueError(1)\n")
    scope: dict[str, object] = {}
    exec(compile(plugin.read_text(), str(plugin), "exec"), scope)
    trace = raised(scope["fail"]).__traceback__
    assert user_line(trace) == f"{plugin}:2"


def test_code_without_a_file_is_shown_by_its_name():
    scope: dict[str, object] = {}
    exec(compile("def f():\n    1 // 0\n", "<notebook cell 3>", "exec"), scope)
    assert user_line(raised(scope["f"]).__traceback__) == "<notebook cell 3>:2"


def test_the_message_of_a_failed_function():
    cause = raised(innermost)
    failure = describe(OperatorFailure("parse", "job.py:7", cause, key="k1", record={"a": 1}), "task")
    assert failure.message == (
        f"[HR-5001] {line_of(innermost, 1)}: JSONDecodeError: {cause}\n"
        "  in operator 'parse', key 'k1', record {'a': 1}, defined at job.py:7"
    )
    assert (failure.operator, failure.user_line, failure.key, failure.kind) == (
        "parse",
        line_of(innermost, 1),
        "'k1'",
        "user",
    )
    assert "innermost" in failure.traceback


def test_a_key_that_is_none_is_still_a_key():
    message = describe(OperatorFailure("x", "job.py:7", ValueError("v"), key=None, record=None), "task").message
    assert "key None, record None" in message
    assert "key" not in describe(OperatorFailure("x", "job.py:7", ValueError("v"), NO_KEY, NO_KEY), "task").message


def test_without_a_line_of_the_user_the_definition_leads():
    assert describe(OperatorFailure("x", "job.py:7", ValueError("v")), "task").message.startswith(
        "[HR-5001] job.py:7: ValueError: v"
    )


def test_a_wrong_type_names_the_operator_that_made_the_record():
    error = TypeMismatch("expected bigint, got 'x'", 3)
    error.origin = ("parse", "job.py:7")
    failure = describe(error, "the reader")
    assert failure.message == (
        "[HR-1302] job.py:7: the function returned a wrong type: expected bigint, got 'x'\n"
        "  in operator 'parse', defined at job.py:7"
    )
    assert failure.operator == "parse"


def test_our_own_words_need_no_class_name():
    message = describe(OperatorFailure("f", "job.py:7", UserCodeError("must yield")), "task").message
    assert message.startswith("[HR-5001] job.py:7: must yield\n")


def test_long_records_are_cut():
    message = describe(OperatorFailure("x", "job.py:7", ValueError(), record="a" * 10_000), "task").message
    assert len(message) < 400
    assert "..." in message


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: OperatorFailure("x", "job.py:7", error)])
def test_an_error_whose_message_fails(wrap):
    class Bad(ValueError):
        def __str__(self):
            raise RuntimeError("no text")

    assert "Bad, whose message cannot be shown: no text" in describe(wrap(Bad()), "task").message


def test_a_message_that_is_a_whole_file_is_cut():
    """The driver keeps the failures of many attempts, and REST shows them."""
    failure = describe(OperatorFailure("x", "job.py:7", ValueError("first " + "a" * 5_000_000 + " last")), "task")
    for text in (failure.message, failure.traceback):
        assert len(text) < 25_000
        assert "first" in text
        assert " last" in text
        assert "characters cut" in text


def test_a_record_whose_repr_fails():
    class Bad:
        def __repr__(self):
            raise RuntimeError("no repr")

    message = describe(OperatorFailure("x", "job.py:7", ValueError(), record=Bad()), "task").message
    assert "record <Bad, whose repr fails: no repr>" in message


def test_an_error_of_the_runtime_names_the_task():
    failure = describe(KeyError("channel"), "Map (2/4)")
    assert failure.message == "[HR-6001] Map (2/4) failed: KeyError: 'channel'"
    assert (failure.kind, failure.operator) == ("runtime", "Map (2/4)")


def test_a_victim_is_no_cause():
    failure = describe(WorkerLost("the input broke off"), "Map (2/4)")
    assert failure.message == "[HR-6003] Map (2/4): the input broke off"
    assert failure.kind == "victim"


def test_sys_exit_leads_with_the_users_line():
    failure = describe(raised(sys.exit, 3), "Map (1/1)")
    assert failure.message.startswith(f"[HR-5001] {__file__}:")
    assert "SystemExit: 3" in failure.message
    assert failure.kind == "user"


@pytest.mark.parametrize("failure", [Failed("m", "t"), Failed("m", "t", "op", "f:1", "k", "victim")])
def test_failures_travel(failure):
    assert decode_from_worker(encode(failure)) == failure


def test_this_file_is_a_users_file():
    """The tests above rely on it: it must not lie below the package or in site-packages."""
    assert "site-packages" not in str(Path(__file__))
