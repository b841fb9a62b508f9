from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from headrace.errors import InvalidArgument, StateMigrationError
from headrace.state.pickling import dump_values, load_values


def test_values_come_back():
    values = [1, "a", (1, [2]), {"k": {3}}, None]
    assert load_values(dump_values(values, "here"), "here") == values


def test_what_cannot_be_stored_is_named():
    with pytest.raises(
        InvalidArgument,
        match=r"state 's': a value of type lock cannot be stored: .*make clients, locks and files in open\(\)",
    ):
        dump_values([1, threading.Lock()], "state 's'")


def test_a_class_that_is_gone_is_named():
    data = dump_values([InvalidArgument("x")], "s").replace(b"InvalidArgument", b"InvalidArgumenX")
    with pytest.raises(
        StateMigrationError,
        match=r"state 's': stored values need class 'headrace.errors.InvalidArgumenX'.*drop the state",
    ):
        load_values(data, "state 's'")


def script(body):
    """Run a program of its own, so that its classes are those of `__main__`."""
    program = "from headrace.state.pickling import dump_values, load_values\nimport sys\n" + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_classes_of_the_script_are_those_of_the_new_script(tmp_path):
    path = str(tmp_path / "pickle")
    script(f"""
        class Visit:
            def __init__(self, page): self.page = page
            def text(self): return "old " + self.page
        open({path!r}, "wb").write(dump_values([Visit("a"), Visit("b")], "s"))
    """)
    assert (
        script(f"""
        class Visit:
            def text(self): return "new " + self.page
        found = load_values(open({path!r}, "rb").read(), "s")
        print([one.text() for one in found], all(type(one) is Visit for one in found))
    """)
        == "['new a', 'new b'] True"
    )
    # A worker has the class only if something brought it; else the stored one serves.
    assert (
        script(f"""
        found = load_values(open({path!r}, "rb").read(), "s")
        again = load_values(open({path!r}, "rb").read(), "s")
        print([one.text() for one in found], type(found[0]) is type(again[0]))
    """)
        == "['old a', 'old b'] True"
    )
    # A worker that cloudpickle has brought the program's functions to
    assert (
        script(f"""
        import cloudpickle, subprocess
        made = subprocess.run([sys.executable, "-c", '''
        import cloudpickle, sys
        class Visit:
            def text(self): return "shipped " + self.page
        sys.stdout.buffer.write(cloudpickle.dumps(Visit))
        '''.replace("\\n        ", "\\n")], capture_output=True, check=True).stdout
        shipped = cloudpickle.loads(made)
        found = load_values(open({path!r}, "rb").read(), "s")
        print([one.text() for one in found], type(found[0]) is shipped)
    """)
        == "['shipped a', 'shipped b'] True"
    )
