"""The forms in which a root of imports takes and gives values; programs have the same results in every one.

`headrace` has the forms of Python and Spark, `headrace.pyflink` those of PyFlink. docs/dialects.md lists the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.records.types import TypeInformation

__all__: list[str] = []


def _same(given: Any) -> Any:
    return given


@dataclass(frozen=True, slots=True)
class Dialect:
    """The forms of one root, which an environment is given; those of `headrace` are the defaults."""

    source_type: Callable[[TypeInformation], TypeInformation] = _same
    """The type of a source's records, which says of which class their rows are."""
    fitted: Callable[[Sequence[Any], TypeInformation], list[Any]] | None = None
    """Converts elements of a collection that do not fit their type; None: they are refused."""
    text: Callable[[Any], str] = str
    """The text that `print` writes for a record."""
    keyed: Callable[[Any, Any], Any] | None = None
    """Makes what is collected of a keyed stream, of a key and its record; None: the record."""
    client: Callable[[Any], Any] = _same
    """The client of a job that runs in the background, made of Headrace's own."""


NATIVE = Dialect()
