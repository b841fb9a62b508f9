"""Values that PyFlink programs use and Python has not: rows that can be changed, and points in time with nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.errors import InvalidArgument


class RowKind(Enum):
    """The kinds of changelog rows.

    >>> str(RowKind.UPDATE_BEFORE)
    '-U'
    """

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return ("+I", "-U", "+U", "-D")[self.value]


class MutableRow:
    """PyFlink's `Row`: fields by position or by name, which can be set.

    It is never equal to a tuple; rows with names are equal if the values of equal names are. The kind of a row travels
    on streams without a declared type; a stream of a declared ROW type refuses rows that are no inserts.

    >>> row = MutableRow(word="a", n=1)
    >>> row["n"] += 1
    >>> row, row.word, "n" in row, row == MutableRow(n=2, word="a"), row == ("a", 2)
    (Row(word='a', n=2), 'a', True, True, False)
    """

    __slots__ = ("_fields", "_row_kind", "_values")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise InvalidArgument("HR-1303", "a Row takes positional or named values, not both")
        self._row_kind = RowKind.INSERT
        self._values = list(args or kwargs.values())
        if kwargs:
            self._fields = list(kwargs)

    @staticmethod
    def of_kind(row_kind: RowKind, *args: Any, **kwargs: Any) -> MutableRow:
        """Return a row of a kind other than INSERT."""
        row = MutableRow(*args, **kwargs)
        row._row_kind = row_kind
        return row

    def get_row_kind(self) -> RowKind:
        return self._row_kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        self._row_kind = row_kind

    def set_field_names(self, field_names: list[str]) -> None:
        self._fields = list(field_names)

    def get_fields_by_names(self, names: list[str]) -> list[Any]:
        """Return the values in the order of these names; of a row without names, in its own order."""
        own = self.names
        if own is None or own == names:
            return self._values
        if missing := set(names).difference(own):
            raise InvalidArgument(
                "HR-1303", f"the row has no field {', '.join(sorted(missing))}; it has {', '.join(own)}"
            )
        return [self._values[own.index(name)] for name in names]

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Return the fields by name; `recursive` makes dicts of rows inside, too."""
        if self.names is None:
            raise TypeError("a Row without field names cannot be converted into a dict")
        return dict(zip(self._fields, map(_plain, self._values) if recursive else self._values, strict=True))

    @property
    def names(self) -> list[str] | None:
        return getattr(self, "_fields", None)

    def copy(self) -> MutableRow:
        return restored_row(self._values, self.names, self._row_kind)

    def __call__(self, *args: Any) -> MutableRow:
        """Return a row of names makes rows with these names: `Row("word", "n")("a", 1)`."""
        if len(args) > len(self):
            raise InvalidArgument("HR-1303", f"{self!r} has {len(self)} fields, got {len(args)} values")
        return restored_row(args, self._values, self._row_kind)

    def __getitem__(self, key: Any) -> Any:
        return self._values[key if isinstance(key, int | slice) else self._index(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._values[key if isinstance(key, int | slice) else self._index(key)] = value

    def _index(self, name: str) -> int:
        try:
            return self._fields.index(name)
        except AttributeError:
            raise KeyError(f"{name!r}; the row has no field names") from None
        except ValueError:
            raise ValueError(f"{name!r}; the row has {', '.join(self._fields)}") from None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            names = self.names or ()
            if name in names:
                return self._values[names.index(name)]
        raise AttributeError(name)

    def __contains__(self, item: Any) -> bool:
        return item in (self._values if self.names is None else self._fields)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MutableRow):
            return False
        mine, theirs = self.names, other.names
        if self._row_kind is not other._row_kind or (mine is None) != (theirs is None):
            return False
        if mine == theirs:
            return self._values == other._values
        return sorted(mine or ()) == sorted(theirs or ()) and self._values == other.get_fields_by_names(mine or [])

    def __hash__(self) -> int:
        return hash(tuple(self._values))

    def __repr__(self) -> str:
        if self.names is None:
            return f"<Row({', '.join(map(repr, self._values))})>"
        return f"Row({', '.join(f'{n}={v!r}' for n, v in zip(self._fields, self._values, strict=False))})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._row_kind is RowKind.INSERT:
            return restored_row, (self._values, self.names)
        return restored_row, (self._values, self.names, self._row_kind.value)


MutableRow.__name__ = MutableRow.__qualname__ = "Row"  # programs know it by PyFlink's name and place
MutableRow.__module__ = "headrace.pyflink.common.types"


def restored_row(
    values: Iterable[Any], names: Iterable[str] | None = None, kind: RowKind | int = RowKind.INSERT
) -> MutableRow:
    """Return a row of values and names."""
    row = MutableRow.__new__(MutableRow)
    row._values = list(values)
    row._row_kind = kind if isinstance(kind, RowKind) else RowKind(kind)
    if names is not None:
        row._fields = list(names)
    return row


# Pickles in stored state name a path that does not move.
restored_row.__module__, restored_row.__qualname__ = "headrace", "_restored_row"


def rows_with_names(names: list[str], records: Iterable[Iterable[Any]]) -> list[MutableRow]:
    """Return a row for each record; all rows share the list of names."""
    new, insert, rows = MutableRow.__new__, RowKind.INSERT, []
    for record in records:
        row = new(MutableRow)
        row._values, row._fields, row._row_kind = list(record), names, insert
        rows.append(row)
    return rows


def first_change(rows: Iterable[Any]) -> int | None:
    """Return the place of the first row that is no insert."""
    insert = RowKind.INSERT
    for index, row in enumerate(rows):
        if row.__class__ is MutableRow and row._row_kind is not insert:
            return index
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, MutableRow):
        return value.as_dict(recursive=True)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Instant:
    """A point in time, as seconds and nanoseconds since 1970."""

    seconds: int
    nanos: int

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        return Instant(epoch_milli // 1000, epoch_milli % 1000 * 1_000_000)

    def to_epoch_milli(self) -> int:
        return self.seconds * 1000 + self.nanos // 1_000_000

    def __repr__(self) -> str:
        return f"Instant<{self.seconds}, {self.nanos}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return restored_instant, (self.seconds, self.nanos)


def restored_instant(seconds: int, nanos: int) -> Instant:
    return Instant(seconds, nanos)


restored_instant.__module__, restored_instant.__qualname__ = "headrace", "_restored_instant"
