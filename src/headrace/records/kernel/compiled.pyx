# cython: language_level=3, binding=False, nonecheck=True, embedsignature=True, embedsignature.format=clinic
"""The compiled form of `plain.py`, with the same names; what each part is for is said there.

`hatch_build.py` compiles it with Cython when Headrace is installed where there is a C compiler.
"""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

import sys
import sysconfig
from types import GeneratorType

import numpy as np

from headrace.records.copying import ATOMS
from headrace.records.copying import detached as detached_by_python
from headrace.records.kernel import hashing

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)
    PyTypeObject *Py_TYPE(PyObject *)
    int PyLong_CheckExact(PyObject *)
    int PyUnicode_CheckExact(PyObject *)
    int PyFloat_CheckExact(PyObject *)
    int PyTuple_Check(PyObject *)
    int PyTuple_CheckExact(PyObject *)
    int PyList_CheckExact(PyObject *)
    int PyDict_CheckExact(PyObject *)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *)
    PyObject *PyTuple_GET_ITEM(PyObject *, Py_ssize_t)
    Py_ssize_t PyList_GET_SIZE(PyObject *)
    PyObject *PyList_GET_ITEM(PyObject *, Py_ssize_t)
    int PyDict_Next(PyObject *, Py_ssize_t *, PyObject **, PyObject **)
    int PySet_Contains(object, object) except -1
    ctypedef struct PyMethodDef:
        pass
    ctypedef struct PyMethodDescrObject:
        PyMethodDef *d_method
    object PyDescr_NewMethod(PyTypeObject *, PyMethodDef *)

cdef extern from *:
    const char *HEADRACE_SOURCE

SOURCE = HEADRACE_SOURCE.decode()

cdef object _GENERATOR = GeneratorType
cdef set _ATOMS = ATOMS
cdef int _DEPTH = 100  # of containers in containers
# References to an object that are the kernel's own, or those of the interpreter that calls it. Since Python 3.14 the interpreter's
# may be those of a variable, and without its lock other threads may hold objects that are not counted as theirs.
cdef Py_ssize_t _OF_LOOP = 0 if sysconfig.get_config_var("Py_GIL_DISABLED") else 1
cdef Py_ssize_t _OF_STACK = _OF_LOOP if sys.version_info < (3, 14) else 0
cdef str _LENGTHS = "records, addresses and key groups must be of one length"


def state_handle(cls):
    # The interpreter takes its short way to a method of C only if the object is exactly of the class of the method.
    for name in ("value", "update"):
        for base in cls.__mro__:
            if name in base.__dict__:
                break
        method = base.__dict__[name]
        if base is not cls and type(method) is type(LoadedValues.value):
            setattr(cls, name, PyDescr_NewMethod(<PyTypeObject *> cls, (<PyMethodDescrObject *> method).d_method))
    return cls


cdef class KeyContext:
    cdef public object address
    cdef public Py_ssize_t group
    cdef public Py_ssize_t position
    cdef readonly object no_key

    def __init__(self, no_key):
        self.address = self.no_key = no_key
        self.group = self.position = 0


cdef class LoadedValues:
    cdef public KeyContext _context
    cdef public bint _changed
    cdef public object _cache
    cdef list _addresses_loaded
    cdef list _values_loaded
    cdef const long long[::1] _places_loaded

    def __init__(self, KeyContext context not None):
        self._context, self._cache = context, {}
        self._unload()

    def _load_values(self, list addresses not None, list values not None, const long long[::1] places not None):
        if not len(addresses) == len(values) == len(places):
            raise ValueError("addresses, values and places must be of one length")
        cdef Py_ssize_t i
        for i in range(len(places)):
            if not 0 <= places[i] < len(values):
                raise IndexError("a place without a value")
        self._addresses_loaded, self._values_loaded, self._places_loaded = addresses, values, places
        self._changed = False

    def _unload(self):
        self._addresses_loaded, self._values_loaded, self._places_loaded = [], [], None
        self._changed = False

    @property
    def _loaded(self):
        return self._values_loaded

    cdef inline Py_ssize_t _place(self):
        cdef Py_ssize_t position = self._context.position  # never negative
        if position < len(self._addresses_loaded) and self._addresses_loaded[position] is self._context.address:
            return self._places_loaded[position]
        return -1

    def value(self):
        """The value of the current key, else the default."""
        cdef Py_ssize_t place = self._place()
        cdef PyObject *found
        if place >= 0:
            stored = self._values_loaded[place]
            if stored is not None:
                return stored
        elif not self._addresses_loaded and self._context.address is not self._context.no_key:
            found = PyDict_GetItemWithError(self._cache, self._context.address)
            if found is not NULL:
                stored = <object> found
                if stored is not None:
                    return stored
        return self._value_elsewhere()

    def update(self, value):
        """Store a value; None removes it."""
        cdef Py_ssize_t place = self._place()
        if place >= 0:
            self._values_loaded[place] = value
            self._changed = True
        elif (
            not self._addresses_loaded and type(self._cache) is dict and self._context.address is not self._context.no_key
        ):
            self._cache[self._context.address] = value
        else:
            self._update_elsewhere(value)


cdef class DirectValue:
    cdef public KeyContext _context
    cdef public list _tables
    cdef public object _plain
    cdef public bint _immutable
    cdef public object _copy
    cdef public object _keep

    def value(self):
        """The value of the current key, else the default."""
        cdef KeyContext context = self._context
        cdef PyObject *found
        if context.address is context.no_key:
            return self._value_elsewhere()
        table = self._tables[context.group]
        found = PyDict_GetItemWithError(table, context.address)
        if found is not NULL:
            stored = <object> found
        elif type(table) is dict:
            return self._value_elsewhere()
        else:
            stored = table[context.address]
        if stored is None:
            return self._default_value()
        return stored if self._immutable or type(stored) in self._plain else self._copy(stored)

    def update(self, value):
        """Store a value; None removes it."""
        cdef KeyContext context = self._context
        if value is None or context.address is context.no_key:
            self._update_elsewhere(value)
            return
        if self._keep is not None and type(value) not in self._plain:
            value = self._keep(value)
        table = self._tables[context.group]
        table[context.address] = value  # not as a dict: the table of another subtask's group refuses it


cdef inline int _take(object result, list out) except -1:
    if type(result) is _GENERATOR:
        for record in result:
            out.append(record)
    else:
        out.extend(result)
    return 0


cdef inline bint _is_atom(PyObject *value) except -1:
    return (
        PyLong_CheckExact(value) or PyUnicode_CheckExact(value) or PyFloat_CheckExact(value)
        or PySet_Contains(_ATOMS, <object> Py_TYPE(value))
    )


# The number of references to an object shows whether its maker keeps it: an object that only the caller holds is changed by no
# other code, so it needs no copy.
cdef bint _is_detached(PyObject *value, Py_ssize_t held, int depth) except -1:
    """True if no other code can change the value; `held` of its references are the caller's, or 0 if others may have it."""
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t inner = 1 if 0 < Py_REFCNT(value) <= held else 0
    cdef PyObject *key
    cdef PyObject *item
    if PyTuple_Check(value) and Py_TYPE(value).tp_dictoffset == 0 and depth < _DEPTH:
        for i in range(PyTuple_GET_SIZE(value)):
            item = PyTuple_GET_ITEM(value, i)
            if not (PyLong_CheckExact(item) or PyUnicode_CheckExact(item) or _is_detached(item, inner, depth + 1)):
                return False
        return True
    if inner and PyList_CheckExact(value) and depth < _DEPTH:
        for i in range(PyList_GET_SIZE(value)):
            if not _is_detached(PyList_GET_ITEM(value, i), 1, depth + 1):
                return False
        return True
    if inner and PyDict_CheckExact(value) and depth < _DEPTH:
        while PyDict_Next(value, &i, &key, &item):
            if not (_is_detached(key, 0, depth + 1) and _is_detached(item, 1, depth + 1)):
                return False
        return True
    return _is_atom(value)


cdef object _copy(object value, int depth):
    """A copy of lists, dicts and tuples of immutable values, which are in one place each; NotImplemented for anything else."""
    cdef PyObject *at = <PyObject *> value
    cdef PyObject *key
    cdef PyObject *item
    cdef Py_ssize_t i = 0
    cdef list items
    cdef dict made
    if depth > _DEPTH:
        return NotImplemented
    if PyDict_CheckExact(at):
        made = {}
        while PyDict_Next(at, &i, &key, &item):
            if not _is_detached(key, 0, depth):
                return NotImplemented
            copied = _copy_of_item(item, depth)
            if copied is NotImplemented:
                return copied
            made[<object> key] = copied
        return made
    if PyList_CheckExact(at):
        items = []
        for i in range(PyList_GET_SIZE(at)):
            copied = _copy_of_item(PyList_GET_ITEM(at, i), depth)
            if copied is NotImplemented:
                return copied
            items.append(copied)
        return items
    if PyTuple_CheckExact(at):
        items = []
        for i in range(PyTuple_GET_SIZE(at)):
            copied = _copy_of_item(PyTuple_GET_ITEM(at, i), depth)
            if copied is NotImplemented:
                return copied
            items.append(copied)
        return tuple(items)
    return NotImplemented


cdef inline object _copy_of_item(PyObject *item, int depth):
    if _is_detached(item, 0, depth + 1):
        return <object> item
    if Py_REFCNT(item) != 1:  # it may be in several places of the value, and then its copy must be so, too
        return NotImplemented
    return _copy(<object> item, depth + 1)


cdef inline object _detached(object value, Py_ssize_t held):
    if _is_detached(<PyObject *> value, held, 0):
        return value
    copied = _copy(value, 0)
    return detached_by_python(value) if copied is NotImplemented else copied


def detached(value, /):  # positional only: else the argument is referred to once more
    return _detached(value, _OF_STACK)


cdef int _take_detached(object result, list out, Py_ssize_t held) except -1:
    # The records of a list that only the caller holds are held by the list as well.
    cdef PyObject *at = <PyObject *> result
    cdef Py_ssize_t of_each = _OF_LOOP
    if 0 < Py_REFCNT(at) <= held and (PyList_CheckExact(at) or PyTuple_CheckExact(at)):
        of_each += 1
    for record in result:
        out.append(_detached(record, of_each))
    return 0


def take(result, list out not None, /):
    if result is not None:
        _take(result, out)


def take_detached(result, list out not None, /):
    if result is not None:
        _take_detached(result, out, 0)


cdef inline int _select(KeyContext context, Py_ssize_t i, list addresses, list groups) except -1:
    if i >= len(addresses) or i >= len(groups):
        raise ValueError(_LENGTHS)
    context.position, context.address, context.group = i, addresses[i], groups[i]
    return 0


cdef inline int _check(Py_ssize_t count, list addresses, list groups) except -1:
    if not count == len(addresses) == len(groups):
        raise ValueError(_LENGTHS)
    return 0


def take_each(function, rows not None, list out not None, list ends, bint detach=False):
    for row in rows:
        result = function(row)
        if result is not None:
            if detach:
                _take_detached(result, out, _OF_LOOP)
            else:
                _take(result, out)
        if ends is not None:
            ends.append(len(out))
        row = None


def process_each(
    function, element, rows not None, list stamps, list addresses not None, list groups not None,
    KeyContext context not None, list out not None, list ends, bint detach=False,
):
    cdef Py_ssize_t i = 0
    for row in rows:
        _select(context, i, addresses, groups)
        if stamps is not None:
            element.stamp = stamps[i]
        result = function(row, element)
        if result is not None:
            if detach:
                _take_detached(result, out, _OF_LOOP)
            else:
                _take(result, out)
        if ends is not None:
            ends.append(len(out))
        i += 1
        row = None  # zip uses a tuple again if nothing else holds it
    _check(i, addresses, groups)
    if stamps is not None:
        element.stamp = None


def flat_map_each(
    function, rows not None, list addresses not None, list groups not None, KeyContext context not None,
    list out not None, list ends, bint detach=False,
):
    cdef Py_ssize_t i = 0
    for row in rows:
        _select(context, i, addresses, groups)
        result = function(row)
        if result is not None:
            if detach:
                _take_detached(result, out, _OF_LOOP)
            else:
                _take(result, out)
        if ends is not None:
            ends.append(len(out))
        i += 1
        row = None
    _check(i, addresses, groups)


def map_each(
    function, bint skips_none, rows not None, list addresses not None, list groups not None,
    KeyContext context not None, list out not None, list ends, bint detach=False,
):
    cdef Py_ssize_t i = 0
    for row in rows:
        _select(context, i, addresses, groups)
        result = function(row)
        if result is not None or not skips_none:
            out.append(_detached(result, _OF_LOOP) if detach else result)
        if ends is not None:
            ends.append(len(out))
        i += 1
        row = None
    _check(i, addresses, groups)


def filter_each(
    function, rows not None, list addresses not None, list groups not None, KeyContext context not None,
    list out not None, list ends,
):
    cdef Py_ssize_t i = 0
    for row in rows:
        _select(context, i, addresses, groups)
        if function(row):
            out.append(row)
        if ends is not None:
            ends.append(len(out))
        i += 1
        row = None
    _check(i, addresses, groups)


def places_of_tagged(list rows not None, tag):
    cdef list places = []
    cdef Py_ssize_t i
    cdef object row
    for i in range(len(rows)):
        row = rows[i]
        if type(row) is tuple and len(<tuple>row) and type((<tuple>row)[0]) is tag:
            places.append(i)
    return places


ctypedef fused offset_t:
    int32_t
    int64_t


cdef bint _hash_text(const uint8_t *at, const uint8_t *end, uint32_t *hash) noexcept nogil:
    """The hash of one row of UTF-8 over its UTF-16 units; whether it is UTF-8, in which surrogates may be alone."""
    cdef uint32_t h = 0
    cdef uint32_t code
    while at < end:
        if end - at >= 4 and not (at[0] | at[1] | at[2] | at[3]) & 0x80:
            # Four products that do not wait for each other.
            h = h * 923521u + at[0] * 29791u + at[1] * 961u + at[2] * 31u + at[3]
            at += 4
            continue
        code = at[0]
        if code < 0x80:
            at += 1
        elif 0xC2 <= code <= 0xDF and end - at >= 2 and at[1] & 0xC0 == 0x80:
            code = (code & 0x1F) << 6 | (at[1] & 0x3F)
            at += 2
        elif code & 0xF0 == 0xE0 and end - at >= 3 and at[1] & 0xC0 == 0x80 and at[2] & 0xC0 == 0x80:
            code = (code & 0x0F) << 12 | (at[1] & 0x3F) << 6 | (at[2] & 0x3F)
            if code < 0x800:
                return False
            at += 3
        elif (
            0xF0 <= code <= 0xF4 and end - at >= 4
            and at[1] & 0xC0 == 0x80 and at[2] & 0xC0 == 0x80 and at[3] & 0xC0 == 0x80
        ):
            code = (code & 0x07) << 18 | (at[1] & 0x3F) << 12 | (at[2] & 0x3F) << 6 | (at[3] & 0x3F)
            if not 0x10000 <= code <= 0x10FFFF:
                return False
            code -= 0x10000
            h = h * 31u + (0xD800 | code >> 10)
            code = 0xDC00 | (code & 0x3FF)
            at += 4
        else:
            return False
        h = h * 31u + code
    hash[0] = h
    return True


cdef bint _hash_rows(
    const offset_t[::1] offsets, const uint8_t[::1] data, bint text, int32_t[::1] result
) except -1:
    cdef Py_ssize_t i
    cdef offset_t low, high = offsets[0]
    cdef uint32_t h
    cdef const uint8_t *first = &data[0] if len(data) else NULL
    cdef const uint8_t *at
    for i in range(len(result)):
        low, high = high, offsets[i + 1]
        if not 0 <= low <= high <= len(data):
            raise ValueError("offsets must not decrease, nor leave the data")
        if text:
            if not _hash_text(first + low, first + high, &h):
                return False
        else:
            h, at = 1, first + low
            while at < first + high:
                h = h * 31u + <uint32_t> <signed char> at[0]
                at += 1
        result[i] = <int32_t> h
    return True


def hash_texts(offsets, data, bint text):
    if not len(offsets) or offsets[0] < 0 or offsets[len(offsets) - 1] > len(data):
        raise ValueError("offsets must not decrease, nor leave the data")
    result = np.empty(len(offsets) - 1, np.int32)
    if offsets.dtype == np.int32:
        done = _hash_rows[int32_t](offsets, data, text, result)
    else:
        done = _hash_rows[int64_t](offsets, data, text, result)
    # The plain form says what is wrong with texts that are not UTF-8.
    return result if done else hashing.hash_texts(offsets, data, text)


def groups_of(const int32_t[:] hashes, uint32_t max_parallelism):
    result = np.empty(len(hashes), np.int32)
    cdef int32_t[::1] groups = result
    cdef uint32_t code
    cdef Py_ssize_t i
    for i in range(len(hashes)):
        code = <uint32_t> hashes[i] * 0xCC9E2D51u
        code = (code << 15 | code >> 17) * 0x1B873593u
        code = ((code << 13 | code >> 19) * 5u + 0xE6546B64u) ^ 4u
        code = (code ^ code >> 16) * 0x85EBCA6Bu
        code = (code ^ code >> 13) * 0xC2B2AE35u
        code = code ^ code >> 16
        if code & 0x80000000u:
            code = (0u - code) & 0x7FFFFFFFu  # of 2**31 nothing is left
        groups[i] = <int32_t> (code % max_parallelism)
    return result
