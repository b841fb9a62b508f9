"""Which of PyFlink's public names Headrace has, and why it has not the others.

`pyflink_names.txt` lists the names of PyFlink 2.3.0, see scripts/pyflink_names.py. A member counts as covered if it is there, does
not only raise, and takes PyFlink's parameters under their names and in their order. For `headrace migrate` and for the page
docs/pyflink.md.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Coverage", "Name", "coverage", "pyflink_names", "reason_for"]

_ROOT = "headrace.pyflink"

VENDORS: dict[str, str] = {
    module: instead for module, instead in importlib.import_module(_ROOT).NOT_HERE.items() if ".connectors." in module
}
"""Connectors of other vendors: not supported, with the nearest alternative."""

_BY_STREAM = "methods of a stream make it; programs do not call the constructor"
_BY_OF = "make it with of(...), with_gap(...) or with_dynamic_gap(...)"
_BY_BUILDER = "make it with StateTtlConfig.new_builder(...)"
_OF_JAVA = "it takes an object of Java"

REASONS = (
    ("common.job_status:JobStatus", "a job on Spark is never in this state"),
    ("common.time:Time.__init__", "make it with Time.milliseconds(...), Time.seconds(...), ..."),
    ("common.typeinfo:TypeInformation.__init__", "make it with Types"),
    ("common.utils:", "it wraps an object of Java"),
    ("datastream.connectors.base:Source.__init__", f"{_OF_JAVA}; subclass headrace.Source"),
    ("datastream.connectors.base:Sink.__init__", f"{_OF_JAVA}; subclass headrace.Sink"),
    (
        "datastream.connectors.file_system:FileSink.BaseBuilder.enable_compact",
        "files of several checkpoints are not made one; set a longer checkpoint interval, or write to Delta and run OPTIMIZE",
    ),
    (
        "datastream.data_stream:CachedDataStream",
        "results are not cached; write them to files, or use df.cache() of Spark",
    ),
    (
        "datastream.data_stream:DataStream.cache",
        "results are not cached; write them to files, or use df.cache() of Spark",
    ),
    ("datastream.data_stream:KeyedStream.AccumulateType", "it is internal to PyFlink"),
    ("datastream.data_stream:KeyedStream.broadcast", "it raises in PyFlink, too"),
    ("datastream.data_stream:KeyedStream.cache", "it raises in PyFlink, too"),
    ("datastream.data_stream:", _BY_STREAM),
    (
        "datastream.formats.csv:CsvSchemaBuilder.set_any_property_name",
        "columns that the schema does not name are not read",
    ),
    ("datastream.functions:AsyncFunctionDescriptor", "it is internal to PyFlink"),
    ("datastream.functions:SourceFunction.__init__", _OF_JAVA),
    ("datastream.functions:SinkFunction.__init__", _OF_JAVA),
    ("datastream.state:ReadOnlyBroadcastState.clear", "it can only be read; change it in process_broadcast_element"),
    ("datastream.state:StateTtlConfig", _BY_BUILDER),
    ("datastream.utils:", "it converts objects of Java"),
    ("datastream.window:ContinuousEventTimeTrigger.register_next", "it is internal to the trigger"),
    ("datastream.window:ContinuousProcessingTimeTrigger.register_next", "it is internal to the trigger"),
    ("datastream.window:", _BY_OF),
)
"""Why members are not there; the first prefix that fits counts."""

_NOT_YET = "not built yet"
_HOOKS = {"AsyncFunction.timeout", "Trigger.on_merge"}  # they raise in PyFlink too, unless a program overrides them


@dataclass(frozen=True, slots=True)
class Name:
    """A class, a member or a function of PyFlink."""

    module: str
    path: str  # `KafkaSource.builder`
    parameters: tuple[str, ...] | None  # None: it is no function

    @property
    def is_class(self) -> bool:
        return "." not in self.path and self.parameters is None

    @property
    def is_vendor(self) -> bool:
        return self.module in VENDORS

    def __str__(self) -> str:
        return f"{self.module}.{self.path}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """A name, and what is different about it here; None: it is covered."""

    name: Name
    problem: str | None


@cache
def pyflink_names() -> tuple[Name, ...]:
    """All names in `pyflink_names.txt`."""
    return tuple(map(_name, (Path(__file__).parent / "pyflink_names.txt").read_text(encoding="utf-8").splitlines()))


def _name(line: str) -> Name:
    module, _, rest = line.partition(":")
    path, call, inside = rest.partition("(")
    parameters = tuple(filter(None, inside.removesuffix(")").split(", "))) if call else None
    return Name(module, path, parameters)


def coverage() -> Iterator[Coverage]:
    """Every name with what is different."""
    for name in pyflink_names():
        yield Coverage(name, _problem(name))


def reason_for(name: Name) -> str:
    """Why a name is not covered, or what to use."""
    if name.module in VENDORS:
        return f"another vendor's connector; {VENDORS[name.module]}"
    key = f"{name.module}:{name.path}"
    return next((reason for prefix, reason in REASONS if key.startswith(prefix)), _NOT_YET)


def _problem(name: Name) -> str | None:
    try:
        found: Any = importlib.import_module(f"{_ROOT}.{name.module}")
    except ModuleNotFoundError:
        return "missing"
    holder: Any = None
    *_, last = steps = name.path.split(".")
    for step in steps:
        if step == "__init__":
            break
        holder = found
        try:
            found = inspect.getattr_static(found, step) if inspect.isclass(found) else getattr(found, step)
        except AttributeError:
            return "missing"
    if name.parameters is None:
        return None
    if isinstance(found, staticmethod | classmethod):
        found = found.__get__(None, holder)
    elif inspect.isfunction(found) and inspect.isclass(holder) and last != "__init__":
        found = found.__get__(object(), object)
    if only_raises(found) and name.path not in _HOOKS:
        return "it only raises"
    return _difference(name.parameters, found)


def only_raises(function: Any) -> bool:
    """Return True if a function does nothing but raise."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isfunction(function) or getattr(function, "__isabstractmethod__", False):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return False
    if not isinstance(tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    body = [
        node for node in tree.body[0].body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    return len(body) == 1 and isinstance(body[0], ast.Raise) and "NotImplementedError" not in ast.dump(body[0])


def _difference(theirs: tuple[str, ...], function: Any) -> str | None:
    """Return the difference of the parameters; additional optional ones are no difference."""
    try:
        ours = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in ours) and any(one.kind is one.VAR_KEYWORD for one in ours):
        return None
    for place, given in enumerate(theirs):
        name, optional = given.removesuffix("=").lstrip("*"), given.endswith("=")
        if place >= len(ours) or ours[place].name != name:
            there = [one.name for one in ours]
            return f"`{name}` at another place" if name in there else f"no parameter `{name}`"
        if optional and ours[place].default is inspect.Parameter.empty:
            return f"`{name}` has no default"
    for one in ours[len(theirs) :]:
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            return f"`{one.name}` is needed"
    return None
