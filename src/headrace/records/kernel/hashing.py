"""Hashes of columns in plain Python with NumPy: Java's of texts and bytes, and the key groups of hashes (SPEC R3.1)."""

from __future__ import annotations

import sys
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]

UTF16: Final = f"utf-16-{sys.byteorder[0]}e"
_M32: Final = 0xFFFFFFFF

# Bytes or UTF-16 units hashed at a time: the two tables and the temporaries stay in the L2 cache.
_BLOCK: Final = 1 << 15
_POW: Final = np.cumprod(np.array([1] + [31] * _BLOCK, np.uint32), dtype=np.uint32)
# 31 is odd, so it has an inverse modulo 2**32; _INV[k] = 31 ** -(k + 1).
_INV: Final = np.cumprod(np.full(_BLOCK, pow(31, -1, 1 << 32), np.uint32), dtype=np.uint32)


def hash_texts(offsets: NDArray[Any], data: NDArray[np.uint8], text: bool) -> Ints:
    """The hash of each row, which lies in `data` from its offset (int32 or int64) to the next; `text`: rows are UTF-8, else bytes.

    >>> hash_texts(np.array([0, 1, 3]), np.frombuffer(b"abc", np.uint8), True).tolist()
    [97, 3137]
    """
    if not len(offsets) or offsets[0] < 0 or offsets[-1] > len(data) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("offsets must not decrease, nor leave the data")
    if not text:
        data = data.view(np.int8)
    count = len(offsets) - 1
    result = np.empty(count, np.int32)
    lo = 0
    while lo < count:  # in blocks of whole rows; a row longer than a block is alone
        # A bound of the offsets' own type: with any other, searchsorted would copy them all.
        bound = offsets.dtype.type(min(int(offsets[lo]) + _BLOCK, int(offsets[-1])))
        hi = max(int(offsets.searchsorted(bound, "right")) - 1, lo + 1)
        ends = offsets[lo : hi + 1] - offsets[lo]
        units: NDArray[Any] = data[offsets[lo] : offsets[hi]]
        if text and units.max(initial=0) >= 0x80:
            units, ends = _utf16(units, ends)
        start = 0 if text else 1
        result[lo:hi] = _polynomials(units, ends, start) if len(units) <= _BLOCK else polynomial(units.data, start)
        lo = hi
    return result


def _utf16(data: NDArray[Any], ends: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """UTF-8 rows as UTF-16 units, and the row bounds among these."""
    text = data.tobytes().decode("utf-8", "surrogatepass")
    # Each byte that is no continuation byte starts a character; one from 0xF0 on makes two units.
    bounds = np.zeros(len(data) + 1, np.int64)
    np.cumsum(((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0), out=bounds[1:])
    return np.frombuffer(text.encode(UTF16, "surrogatepass"), np.uint16), bounds[ends]


def _polynomials(units: NDArray[Any], ends: NDArray[Any], start: int) -> Ints:
    """`polynomial` of every row of a block, with no loop over rows or characters.

    With unit k of the block weighted by 31**-(k + 1), the sum over a row is a difference of two prefix
    sums, and 31**end times that is the row's polynomial. It is exact: all of it is modulo 2**32.
    """
    prefix = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units.astype(np.uint32) * _INV[: len(units)], dtype=np.uint32, out=prefix[1:])
    at = prefix[ends]
    rows = (at[1:] - at[:-1]) * _POW[ends[1:]]
    if start:
        rows += _POW[np.diff(ends)] * np.uint32(start)
    hashes: Ints = rows.view(np.int32)
    return hashes


def polynomial(units: bytes | memoryview, start: int) -> int:
    """Return the hash of one row of n units: start * 31**n + the sum of units[i] * 31**(n - 1 - i), as a signed int."""
    h = start
    if len(units) < 32:  # a loop over so few is faster than numpy's fixed cost
        for unit in units:
            h = 31 * h + unit & _M32
    else:
        array = np.asarray(memoryview(units))
        for lo in range(0, len(array), _BLOCK):
            block = array[lo : lo + _BLOCK].astype(np.uint32)
            h = h * int(_POW[len(block)]) + int(np.dot(block, _POW[: len(block)][::-1])) & _M32
    return h - 0x100000000 if h & 0x80000000 else h


def groups_of(hashes: Ints, max_parallelism: int) -> Ints:
    """Return the key group of each hash: `groups_of(np.array([0, 1], np.int32), 128).tolist() == [94, 86]`."""
    codes = hashes.view(np.uint32)
    groups = np.empty(len(codes), np.int32)
    divisor = np.int32(max_parallelism)
    for lo in range(0, len(codes), _BLOCK):
        mixed = murmur_bits(codes[lo : lo + _BLOCK]).view(np.int32)
        # abs(-2**31) is still negative in 32 bits, and becomes 0.
        codes_of_block = np.maximum(np.abs(mixed), 0)
        # NumPy divides four numbers at once, but takes remainders one by one.
        groups[lo : lo + _BLOCK] = codes_of_block - codes_of_block // divisor * divisor
    return groups


def murmur_bits(code: Any) -> Any:
    """MurmurHash3-32 of an unsigned int or of an array of uint32, which needs no masks but takes no harm."""
    code = code * 0xCC9E2D51 & _M32
    code = (code << 15 | code >> 17) * 0x1B873593 & _M32
    code = (code << 13 | code >> 19) * 5 + 0xE6546B64 & _M32 ^ 4
    code = (code ^ code >> 16) * 0x85EBCA6B & _M32
    code = (code ^ code >> 13) * 0xC2B2AE35 & _M32
    return code ^ code >> 16
