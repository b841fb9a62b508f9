"""The inner loops of keyed streams: compiled where Headrace was installed with a C compiler, else in plain Python.

Both forms do the same (`plain.py` explains it). `HEADRACE_KERNEL=plain` chooses the one in Python, `compiled` fails if there is
no other. A compiled form that was made from another version of its source is not used.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
from pathlib import Path
from typing import Any, Final

from headrace.errors import InvalidArgument
from headrace.records.kernel.plain import (
    DirectValue,
    KeyContext,
    LoadedValues,
    detached,
    filter_each,
    flat_map_each,
    groups_of,
    hash_texts,
    map_each,
    places_of_tagged,
    process_each,
    state_handle,
    take,
    take_detached,
    take_each,
)

_SOURCE: Final = Path(__file__).with_name("compiled.pyx")
_VARIABLE: Final = "HEADRACE_KERNEL"
_LOG: Final = logging.getLogger(__name__)


def _compiled() -> tuple[Any, str | None]:
    """Return the compiled form; or why it cannot be used."""
    try:
        found = importlib.import_module("headrace.records.kernel.compiled")
    except ImportError as error:
        return None, f"it was not compiled when Headrace was installed ({error})"
    source = hashlib.sha256(_SOURCE.read_bytes()).hexdigest() if _SOURCE.exists() else ""
    if getattr(found, "SOURCE", None) != source:
        problem = "it was compiled from another version of its source: install Headrace again"
        _LOG.warning("loops of keyed functions run in plain Python: %s", problem)
        return None, problem
    return found, None


def _chosen() -> tuple[Any, str | None]:
    """Return the compiled form if it is used; if it is not, why."""
    wanted = os.environ.get(_VARIABLE, "")
    if wanted not in ("", "plain", "compiled"):
        raise InvalidArgument("HR-1001", f"{_VARIABLE}={wanted}: it must be 'plain', 'compiled', or not set")
    if wanted == "plain":
        return None, f"{_VARIABLE}=plain"
    found, problem = _compiled()
    if problem is not None and wanted == "compiled":
        raise ImportError(f"{_VARIABLE}=compiled, but the kernel cannot be used: {problem}")
    return found, problem


_FORM, PROBLEM = _chosen()
COMPILED: Final = _FORM is not None
"""Whether loops are compiled; if not, `PROBLEM` says why."""

__all__ = [
    "COMPILED",
    "PROBLEM",
    "DirectValue",
    "KeyContext",
    "LoadedValues",
    "detached",
    "filter_each",
    "flat_map_each",
    "groups_of",
    "hash_texts",
    "map_each",
    "places_of_tagged",
    "process_each",
    "state_handle",
    "take",
    "take_detached",
    "take_each",
]

if COMPILED:  # in place of those that were imported
    globals().update({name: getattr(_FORM, name) for name in __all__ if name not in ("COMPILED", "PROBLEM")})
