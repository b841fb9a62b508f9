"""Both forms of the kernel: the compiled one and the one in plain Python do the same."""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.records import kernel
from headrace.records.kernel import plain
from headrace.records.key_groups import murmur

NO_KEY = object()
HAS_NO_ABSOLUTE_VALUE = -2089875627  # its murmur hash is -2**31
FORMS = [plain, importlib.import_module("headrace.records.kernel.compiled")] if kernel.COMPILED else [plain]


@pytest.fixture(params=FORMS, ids=lambda form: form.__name__.rpartition(".")[2])
def form(request):
    return request.param


@pytest.fixture(params=FORMS, ids=lambda form: form.__name__.rpartition(".")[2], scope="module")
def form_of_kernel(request):
    """The same, for tests that run with many examples."""
    return request.param


def test_the_compiled_form_is_used_where_it_can_be_made():
    """`make setup` compiles it wherever there are a compiler and the headers of Python."""
    if os.environ.get("HEADRACE_KERNEL") == "plain":
        pytest.skip("the plain form was asked for")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("there is no C compiler, or no Python.h")
    assert kernel.COMPILED, kernel.PROBLEM


class Refuses(dict):
    def __setitem__(self, key, value):
        raise LookupError(key)


# --- side outputs -----------------------------------------------------------------------------------------------------


class Tag:
    pass


class Pair(tuple):
    """No plain tuple: a record of the user's."""

    __slots__ = ()


@given(
    st.lists(
        st.sampled_from(
            [Tag(), (Tag(), 1), (Tag(),), (), (1, Tag()), [Tag(), 1], Pair((Tag(), 1)), ((Tag(),),), None, 7]
        )
    )
)
def test_places_of_tagged_records(form_of_kernel, rows):
    found = form_of_kernel.places_of_tagged(rows, Tag)
    assert found == [i for i, row in enumerate(rows) if row.__class__ is tuple and row and row[0].__class__ is Tag]


# --- the key context ------------------------------------------------------------------------------------------------


def test_a_new_context_selects_no_key(form):
    context = form.KeyContext(NO_KEY)
    assert context.address is context.no_key is NO_KEY
    assert (context.group, context.position) == (0, 0)


# --- loaded values --------------------------------------------------------------------------------------------------


def loaded(form, addresses, values, places):
    """A handle with values of a batch, in which what is elsewhere is recorded."""

    @form.state_handle
    class Handle(form.LoadedValues):
        def __init__(self, context):
            super().__init__(context)
            self.elsewhere = []

        def _value_elsewhere(self):
            self.elsewhere.append("value")
            return "elsewhere"

        def _update_elsewhere(self, value):
            self.elsewhere.append(value)

    context = form.KeyContext(NO_KEY)
    handle = Handle(context)
    handle._load_values(addresses, values, np.array(places, np.int64))
    return context, handle


def at(context, addresses, position):
    context.position, context.address = position, addresses[position]


def test_records_of_one_key_share_a_value(form):
    addresses, values = [10**6, 2 * 10**6, 10**6 + 0], [5, 6, 0]
    addresses[2] = int("1000000")  # equal, but another object
    context, handle = loaded(form, addresses, values, [0, 1, 0])
    at(context, addresses, 2)
    assert handle.value() == 5
    assert not handle._changed
    handle.update(7)
    assert handle._changed
    at(context, addresses, 0)
    assert handle.value() == 7
    assert handle._loaded == values == [7, 6, 0]
    assert handle.elsewhere == []


def test_none_is_no_value(form):
    addresses = [10**6]
    context, handle = loaded(form, addresses, [None], [0])
    at(context, addresses, 0)
    assert handle.value() == "elsewhere"  # which gives the default
    handle.update(3)
    assert handle.value() == 3
    handle.update(None)
    assert handle._loaded == [None]


@pytest.mark.parametrize(
    ("position", "address"),
    [(1, 10**6), (0, NO_KEY), (2, 10**6)],
    ids=["another record", "no key", "beyond the batch"],
)
def test_a_key_that_is_not_the_one_of_the_record_is_elsewhere(form, position, address):
    addresses = [10**6, 2 * 10**6]
    context, handle = loaded(form, addresses, [5, 6], [0, 1])
    context.position, context.address = position, address
    assert handle.value() == "elsewhere"
    handle.update(9)
    assert handle.elsewhere == ["value", 9]
    assert handle._loaded == [5, 6]
    assert not handle._changed


def test_nothing_is_loaded_at_first_and_after_the_batch(form):
    addresses = [10**6]
    context, handle = loaded(form, addresses, [5], [0])
    at(context, addresses, 0)
    handle.update(6)
    handle._unload()
    assert handle.value() == "elsewhere"
    assert not handle._changed
    assert handle._loaded == []


@pytest.mark.parametrize("places", [[0], [0, 2], [-1, 0]])
def test_places_must_be_those_of_values(form, places):
    with pytest.raises((ValueError, IndexError)):
        loaded(form, [1, 2], [5, 6], places)


def test_while_nothing_is_loaded_values_are_in_the_dict(form):
    context, handle = loaded(form, [], [], [])
    context.address = "a"
    assert handle.value() == "elsewhere"
    handle.update(5)
    assert handle._cache == {"a": 5}
    assert handle.value() == 5
    handle.update(None)
    assert handle.value() == "elsewhere"  # which gives the default
    assert handle.elsewhere == ["value", "value"]
    context.address = NO_KEY
    assert handle.value() == "elsewhere"
    handle.update(1)
    assert handle.elsewhere[-1] == 1
    assert handle._cache == {"a": None}


def test_a_cache_of_another_class_stores_in_its_own_way(form):
    context, handle = loaded(form, [], [], [])
    handle._cache, context.address = Refuses(), "a"
    handle.update(5)
    assert handle.elsewhere == [5]
    assert handle.value() == "elsewhere"


def test_a_handle_without_context_is_refused(form):
    handle = form.DirectValue()
    handle._tables = [{}]
    for call in (handle.value, lambda: handle.update(1)):
        with pytest.raises(AttributeError):
            call()


def test_methods_of_handles_have_signatures_and_texts(form):
    _, handle = loaded(form, [], [], [])
    assert str(inspect.signature(handle.update)) in ("(value)", "(value: 'Any') -> 'None'")
    assert "None removes it" in type(handle).update.__doc__


# --- values in dicts ------------------------------------------------------------------------------------------------


def direct(form, tables, **attributes):
    @form.state_handle
    class Handle(form.DirectValue):
        def _value_elsewhere(self):
            return "elsewhere"

        def _update_elsewhere(self, value):
            self.removed = value

    handle = Handle()
    handle._context, handle._tables = form.KeyContext(NO_KEY), tables
    handle._plain, handle._immutable, handle._keep, handle._copy = frozenset([int]), False, None, list
    handle._default_value = lambda: "default"
    for name, value in attributes.items():
        setattr(handle, f"_{name}", value)
    return handle._context, handle


def test_values_of_the_key_in_its_group(form):
    tables = [{"a": 1}, {"a": 2}]
    context, handle = direct(form, tables)
    context.address, context.group = "a", 1
    assert handle.value() == 2
    handle.update(3)
    assert tables == [{"a": 1}, {"a": 3}]
    context.address = "b"
    assert handle.value() == "elsewhere"
    assert tables == [{"a": 1}, {"a": 3}]


def test_values_that_can_be_changed_are_copied(form):
    kept = [1]
    context, handle = direct(form, [{"a": kept}])
    context.address = "a"
    assert handle.value() == kept
    assert handle.value() is not kept
    context, handle = direct(form, [{"a": kept}], immutable=True)
    context.address = "a"
    assert handle.value() is kept


def test_values_are_kept_in_another_form(form):
    tables = [{}]
    context, handle = direct(form, tables, keep=tuple)
    context.address = "a"
    handle.update([1, 2])
    assert tables == [{"a": (1, 2)}]
    handle.update(5)
    assert tables == [{"a": 5}]


def test_none_and_a_missing_key_are_for_the_owner(form):
    tables = [{}]
    context, handle = direct(form, tables)
    assert handle.value() == "elsewhere"
    handle.update(4)
    assert handle.removed == 4
    context.address = "a"
    handle.update(None)
    assert handle.removed is None
    assert tables == [{}]


def test_there_is_no_value_where_none_is_stored(form):
    context, handle = direct(form, [{"a": None}])
    context.address = "a"
    assert handle.value() == "default"


class Below(dict):
    """As the tables of rocksdb, which find what is not in them."""

    def __missing__(self, key):
        return {"b": [7]}.get(key)


def test_what_a_table_finds_has_the_form_of_what_it_holds(form):
    copies = []
    context, handle = direct(form, [Below(a=[6])], copy=lambda kept: copies.append(kept) or kept[0])
    for address, expected in (("a", 6), ("b", 7), ("c", "default")):
        context.address = address
        assert handle.value() == expected
    assert copies == [[6], [7]]  # once for each


def test_a_table_may_refuse(form):
    context, handle = direct(form, [Refuses()])
    context.address = "a"
    with pytest.raises(LookupError):
        handle.update(1)


# --- loops ----------------------------------------------------------------------------------------------------------


class Element:
    stamp = None


def results(rows):
    """What a function may give: nothing, a list, a tuple, a generator, an iterator."""
    return [None, [rows, rows], (), (r for r in (rows, rows, rows)), iter([rows])]


@pytest.mark.parametrize("stamps", [None, [3, 4, 5, 6, 7]])
def test_process_each(form, stamps):
    context, element, seen, given = form.KeyContext(NO_KEY), Element(), [], results("x")

    def function(row, got):
        assert got is element
        seen.append((row, context.address, context.group, context.position, element.stamp))
        return given[row]

    out, ends = [], None if stamps is None else []
    form.process_each(function, element, [0, 1, 2, 3, 4], stamps, list("abcde"), [5, 6, 7, 8, 9], context, out, ends)
    times = stamps or [None] * 5
    assert seen == list(zip(range(5), "abcde", range(5, 10), range(5), times, strict=True))
    assert out == ["x"] * 6
    assert ends == (None if stamps is None else [0, 2, 2, 5, 6])
    assert element.stamp is None


@pytest.mark.parametrize("stamped", [False, True])
def test_flat_map_each(form, stamped):
    context, given, out, ends = form.KeyContext(NO_KEY), results("x"), [], [] if stamped else None
    form.flat_map_each(given.__getitem__, [0, 1, 2, 3, 4], list("abcde"), [0] * 5, context, out, ends)
    assert out == ["x"] * 6
    assert ends == ([0, 2, 2, 5, 6] if stamped else None)


@pytest.mark.parametrize(("skips", "expected", "counts"), [(False, [1, None, 0], [1, 2, 3]), (True, [1, 0], [1, 1, 2])])
def test_map_each(form, skips, expected, counts):
    context, out, ends = form.KeyContext(NO_KEY), [], []
    form.map_each({5: 1, 6: None, 7: 0}.get, skips, [5, 6, 7], list("abc"), [0] * 3, context, out, ends)
    assert (out, ends) == (expected, counts)
    form.map_each({5: 1}.get, skips, [5], ["a"], [0], context, out, None)


def test_filter_each(form):
    context, out, ends = form.KeyContext(NO_KEY), [], []
    form.filter_each(bool, [5, 0, "x", ""], list("abcd"), [0] * 4, context, out, ends)
    assert (out, ends) == ([5, "x"], [1, 1, 2, 2])
    form.filter_each(bool, [5], ["a"], [0], context, out, None)


@pytest.mark.parametrize("name", ["process_each", "flat_map_each", "map_each", "filter_each"])
def test_the_place_of_the_record_that_failed(form, name):
    context = form.KeyContext(NO_KEY)

    def function(row, *_):
        if row == 7:
            raise RuntimeError
        return []

    first = {"process_each": (function, Element()), "map_each": (function, False)}.get(name, (function,))
    between = (None,) if name == "process_each" else ()
    with pytest.raises(RuntimeError):
        getattr(form, name)(*first, [5, 6, 7, 8], *between, list("abcd"), [1, 2, 3, 4], context, [], None)
    assert (context.position, context.address, context.group) == (2, "c", 3)


def test_a_generator_that_fails_half_way(form):
    def function(row, _):
        yield row
        raise RuntimeError

    context = form.KeyContext(NO_KEY)
    with pytest.raises(RuntimeError):
        form.process_each(function, Element(), [1, 2], None, ["a", "b"], [0, 0], context, [], None)
    assert context.position == 0


def test_a_function_that_gives_no_iterable(form):
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        form.process_each(lambda row, _: 5, Element(), [1], None, ["a"], [0], form.KeyContext(NO_KEY), [], None)


@pytest.mark.parametrize(("addresses", "groups"), [(["a"], [0, 0]), (["a", "b"], [0])])
def test_columns_of_different_lengths_are_refused(form, addresses, groups):
    with pytest.raises(ValueError):
        form.process_each(
            lambda *_: None, Element(), [1, 2], None, addresses, groups, form.KeyContext(NO_KEY), [], None
        )


LOOPS = {
    "process_each": lambda form, f, rows, *more: form.process_each(lambda row, _: f(row), Element(), rows, None, *more),
    "flat_map_each": lambda form, f, rows, *more: form.flat_map_each(f, rows, *more),
    "map_each": lambda form, f, rows, *more: form.map_each(lambda row: f(row)[0], False, rows, *more),
    "filter_each": lambda form, f, rows, *more: form.filter_each(f, rows, *more),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_records_may_be_made_when_it_is_their_turn(form, loop):
    """A tuple that zip makes is used for the next record only if nothing else holds it."""
    context, out, held = form.KeyContext(NO_KEY), [], []

    def function(row):
        held.append(row) if row[0] % 2 else None
        return [row]

    rows = zip(range(6), "abcdef", strict=True)
    LOOPS[loop](form, function, rows, list("uvwxyz"), [0] * 6, context, out, None)
    assert out == list(zip(range(6), "abcdef", strict=True))
    assert held == out[1::2]
    assert (context.position, context.address) == (5, "z")


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("loop", LOOPS)
def test_too_few_or_too_many_records_are_refused(form, loop, count):
    with pytest.raises(ValueError):
        LOOPS[loop](form, lambda row: [row], iter(range(count)), ["a", "b"], [0, 0], form.KeyContext(NO_KEY), [], None)


# --- hashes ---------------------------------------------------------------------------------------------------------


def rows_of(rows, width=np.int32, before=b""):
    """Rows as a column has them: offsets, and the bytes of all rows after those of others."""
    data = before + b"".join(rows)
    ends = np.cumsum([len(before), *map(len, rows)])
    return ends.astype(width), np.frombuffer(data + b"behind", np.uint8)


def java(units, start):
    h = start
    for unit in units:
        h = (31 * h + unit) % 2**32
    return h - 2**32 if h >= 2**31 else h


def java_of_text(text):
    units = text.encode("utf-16-le", "surrogatepass")
    return java([units[i] | units[i + 1] << 8 for i in range(0, len(units), 2)], 0)


TEXTS = st.text(st.characters(codec=None, exclude_categories=[]), max_size=30) | st.text("abc", max_size=90)


@given(texts=st.lists(TEXTS, max_size=8), width=st.sampled_from([np.int32, np.int64]), before=st.binary(max_size=3))
@example(texts=["\x7f\x80\u07ff\u0800\ud7ff\ud800\udfff\ue000\uffff\U00010000\U0010ffff"], width=np.int32, before=b"")
@example(texts=["abcd\u00e9efgh\U0001f600ij", ""], width=np.int64, before=b"")
def test_texts_have_the_hash_of_java(form_of_kernel, texts, width, before):
    """SPEC R3.1"""
    offsets, data = rows_of([text.encode("utf-8", "surrogatepass") for text in texts], width, before)
    hashes = form_of_kernel.hash_texts(offsets, data, True)
    assert hashes.dtype == np.int32
    assert hashes.tolist() == [java_of_text(text) for text in texts]


@given(rows=st.lists(st.binary(max_size=60), max_size=8), width=st.sampled_from([np.int32, np.int64]))
def test_bytes_have_the_hash_of_java(form_of_kernel, rows, width):
    """SPEC R3.1"""
    offsets, data = rows_of(rows, width)
    expected = [java([byte if byte < 128 else byte - 256 for byte in row], 1) for row in rows]
    assert form_of_kernel.hash_texts(offsets, data, False).tolist() == expected


def test_long_rows_among_short_ones(form):
    rows = [b"a", b"b" * 40_000, "c\u20ac".encode() * 20_000, b"", b"d" * 32_768, b"e"]
    offsets, data = rows_of(rows)
    assert form.hash_texts(offsets, data, True).tolist() == [java_of_text(row.decode()) for row in rows]
    assert form.hash_texts(offsets, data, False).tolist() == [
        java([byte if byte < 128 else byte - 256 for byte in row], 1) for row in rows
    ]


@given(st.binary(max_size=8))
@example(b"\xc0\x80")  # more bytes than the character needs
@example(b"\xe0\x9f\xbf")
@example(b"\xf0\x8f\xbf\xbf")
@example(b"\xf4\x90\x80\x80")  # beyond the last character
@example(b"abc\xe2\x82")  # cut
@example(b"\xe2\x28\xa1")
@example(b"\xf0\x9f\x98A")
def test_what_is_not_utf_8_is_refused_as_python_does(form_of_kernel, row):
    offsets, data = rows_of([row])
    try:
        expected = [java_of_text(row.decode("utf-8", "surrogatepass"))]
    except UnicodeDecodeError as error:
        with pytest.raises(UnicodeDecodeError, match=re.escape(error.reason)):
            form_of_kernel.hash_texts(offsets, data, True)
    else:
        assert form_of_kernel.hash_texts(offsets, data, True).tolist() == expected


@pytest.mark.parametrize("character", ["\u00e9", "\u20ac", "\U0001f600"])
def test_a_row_does_not_end_inside_a_character(form, character):
    """What the next row begins with does not belong to it."""
    data = f"ab{character}cd".encode()
    for cut in range(3, 2 + len(character.encode())):
        offsets, column = np.array([0, cut], np.int32), np.frombuffer(data, np.uint8)
        with pytest.raises(UnicodeDecodeError, match="unexpected end of data"):
            form.hash_texts(offsets, column, True)


def test_columns_of_more_than_two_gibibytes(form):
    data = np.zeros((1 << 31) + 8, np.uint8)  # pages that nothing is written to take no memory
    data[-2:] = 97, 98
    offsets = np.array([len(data) - 2, len(data) - 1, len(data)], np.int64)
    assert form.hash_texts(offsets, data, True).tolist() == [97, 98]


def test_columns_that_must_not_be_changed(form):
    offsets, data = rows_of([b"a", b"bc"])
    hashes = form.hash_texts(np.frombuffer(offsets.tobytes(), np.int32), np.frombuffer(data.tobytes(), np.uint8), True)
    assert hashes.tolist() == [97, 3137]
    groups = form.groups_of(np.frombuffer(np.arange(2, dtype=np.int32).tobytes(), np.int32), 128)
    assert groups.tolist() == [94, 86]


def test_columns_without_rows_have_no_hashes(form):
    assert form.hash_texts(np.array([0], np.int32), np.empty(0, np.uint8), True).tolist() == []
    assert form.hash_texts(np.array([0, 0, 0], np.int32), np.empty(0, np.uint8), True).tolist() == [0, 0]
    assert form.hash_texts(np.array([0, 0], np.int64), np.empty(0, np.uint8), False).tolist() == [1]
    assert form.groups_of(np.empty(0, np.int32), 128).tolist() == []


@pytest.mark.parametrize("offsets", [[], [5], [-1, 2], [0, 4], [2, 1], [0, 2, 1, 3], [0, -1, 3], [0, 1 << 30, 3]])
@pytest.mark.parametrize("text", [True, False])
def test_offsets_that_leave_the_data_are_refused(form, offsets, text):
    with pytest.raises(ValueError, match="offsets must not decrease, nor leave the data"):
        form.hash_texts(np.array(offsets, np.int32), np.frombuffer(b"abc", np.uint8), text)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20), st.integers(1, 32768))
@example([0, 1, -1, 2**31 - 1, -(2**31)], 128)
@example([HAS_NO_ABSOLUTE_VALUE], 127)  # 2**31 is no multiple of it
def test_groups_of_hashes(form_of_kernel, hashes, max_parallelism):
    """SPEC R3.1"""
    groups = form_of_kernel.groups_of(np.array(hashes, np.int32), max_parallelism)
    assert groups.dtype == np.int32
    assert groups.tolist() == [murmur(code) % max_parallelism for code in hashes]


def test_every_second_hash(form):
    hashes = np.arange(10, dtype=np.int32)
    assert form.groups_of(hashes[::2], 128).tolist() == form.groups_of(hashes, 128).tolist()[::2]


# --- the choice -----------------------------------------------------------------------------------------------------


def chosen(wish, setup=""):
    """What another process says about its kernel."""
    code = f"{setup}\nfrom headrace.records import kernel; print(kernel.COMPILED, kernel.KeyContext.__module__, kernel.PROBLEM)"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HEADRACE_KERNEL": wish},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_plain_form_can_be_asked_for():
    assert chosen("plain").stdout == "False headrace.records.kernel.plain HEADRACE_KERNEL=plain\n"


def test_an_unknown_form_is_refused():
    assert "HEADRACE_KERNEL=fast: it must be 'plain', 'compiled', or not set" in chosen("fast").stderr


MISSING = "import sys; sys.modules['headrace.records.kernel.compiled'] = None"


def test_without_the_compiled_form_the_plain_one_is_used():
    assert chosen("", MISSING).stdout.startswith(
        "False headrace.records.kernel.plain it was not compiled when Headrace was"
    )


def test_the_compiled_form_can_be_demanded():
    assert "HEADRACE_KERNEL=compiled, but the kernel cannot be used: it was not" in chosen("compiled", MISSING).stderr


def test_one_that_was_compiled_from_another_source_is_not_used():
    stale = "import sys, types; m = types.ModuleType('c'); m.SOURCE = 'old'; sys.modules['headrace.records.kernel.compiled'] = m"
    answer = chosen("", stale)
    assert answer.stdout.startswith("False headrace.records.kernel.plain it was compiled from another version")
    assert "install Headrace again" in answer.stderr


def test_the_source_travels_with_the_package():
    assert Path(kernel.__file__).with_name("compiled.pyx").exists()


def test_both_forms_have_the_same_names():
    for form in FORMS:
        assert all(hasattr(form, name) for name in kernel.__all__ if name not in ("COMPILED", "PROBLEM"))


# --- records that are emitted ---------------------------------------------------------------------------------------


class Plain:
    def __init__(self, n):
        self.n = n


@pytest.mark.parametrize("record", [1, "a", None, (1, "a"), (1, (2, None)), np.int64(3), frozenset("a")])
def test_a_record_that_cannot_be_changed_is_emitted_itself(form, record):
    assert form.detached(record) is record


@pytest.mark.parametrize(
    "record",
    [[1], [[1], 2], {"a": 1}, {"a": [1], (1, 2): {"b": ()}}, (1, [2]), {1}, [{1}], bytearray(b"x"), np.zeros(2)],
)
def test_a_record_that_its_maker_keeps_is_copied(form, record):
    kept = record
    found = form.detached(record)
    assert found is not kept
    assert type(found) is type(kept)
    assert repr(found) == repr(kept)


def test_a_copy_shares_nothing(form):
    record = {"a": [1, ([2], {"b": [3]})], "object": Plain([4])}
    found = form.detached(record)
    found["a"][1][0].append(9)
    found["a"][1][1]["b"].append(9)
    found["object"].n.append(9)
    assert (record["a"], record["object"].n) == ([1, ([2], {"b": [3]})], [4])


def test_what_is_in_two_places_of_a_record_is_so_in_its_copy(form):
    part = [1]
    found = form.detached({"a": part, "b": part})
    assert found["a"] is found["b"] is not part


def test_a_record_in_itself_is_copied(form):
    record = [1]
    record.append(record)
    found = form.detached(record)
    assert found is not record
    assert found[1] is found


def test_a_deep_record_is_copied(form):
    record = []
    for _ in range(300):
        record = [record]
    kept = record
    assert form.detached(record) is not kept


def test_a_record_that_cannot_be_copied_is_emitted_itself(form):
    record = (n for n in [1])
    assert form.detached(record) is record
    kept = [record]
    assert form.detached(kept) is kept


def test_a_new_record_is_not_copied(compiled_form):
    """References to it show that its maker does not keep it."""
    addresses = []

    def made():
        record = {"a": [1, (2, [3])]}
        addresses.append(id(record))
        return record

    out = []
    compiled_form.take_detached((made() for _ in range(1)), out)
    compiled_form.take_each(lambda _: [made()], [1], out, None, True)
    assert [id(record) for record in out] == addresses
    inner = [1]
    compiled_form.take_detached([[inner]], out)
    assert out[-1][0] is not inner


@pytest.fixture
def compiled_form():
    if not kernel.COMPILED or sys.version_info >= (3, 14) or sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("there is no compiled form, or the interpreter does not count all references")
    return FORMS[-1]


@pytest.mark.parametrize("given", [list, tuple, iter, lambda records: (record for record in records)])
def test_records_are_taken_with_or_without_a_copy(form, given):
    records = [[1], (2, 3), [4]]
    out = []
    form.take(given(records), out)
    assert all(one is other for one, other in zip(out, records, strict=True))
    out = []
    form.take_detached(given(records), out)
    assert out == records
    assert [one is other for one, other in zip(out, records, strict=True)] == [False, True, False]
    form.take(None, out)
    form.take_detached(None, out)
    assert len(out) == 3


def test_a_record_that_is_changed_after_it_was_yielded(form):
    def twice():
        record = [0]
        yield record
        record[0] = 1
        yield record

    out = []
    form.take_detached(twice(), out)
    assert out == [[0], [1]]


def test_loops_detach_what_functions_give(form):
    kept = [0]
    context, out = form.KeyContext(NO_KEY), []
    form.map_each(lambda row: kept, False, [1], ["a"], [0], context, out, None, True)
    form.flat_map_each(lambda row: [kept], [1], ["a"], [0], context, out, None, True)
    form.process_each(lambda row, element: iter([kept]), None, [1], None, ["a"], [0], context, out, None, True)
    form.take_each(lambda row: [kept], [1], out, None, True)
    assert out == [[0]] * 4
    assert all(record is not kept for record in out)


def test_results_of_a_function_without_a_key(form):
    out, ends = [], []
    form.take_each(lambda n: range(n) if n else None, [2, 0, 1], out, ends)
    assert (out, ends) == ([0, 1, 0], [2, 2, 3])
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        form.take_each(lambda n: n, [1], out, None)
