"""The state browser: pages through the states of the newest completed checkpoint, and looks up keys.

The files of a checkpoint are read, never the state of running subtasks, so the job is not held up. One thread reads, for all
requests; a request waits some seconds for it. A page is continued by its cursor, which keeps what was read open for a while.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from itertools import groupby
from typing import Any

import pyarrow as pa

from headrace import config
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.driver.checkpoint_service import CheckpointService
from headrace.driver.job import SparkJob
from headrace.errors import HeadraceError, IllegalState, InvalidArgument, StateMigrationError
from headrace.records.key_groups import KeyGroupRange, key_group, key_group_range
from headrace.savepoints.reader import StateInfo, StateSnapshotReader
from headrace.state.pickling import load_values
from headrace.storage.objects import MissingObject
from headrace.storage.remote import open_store

Document = dict[str, Any]

_WAIT = 20.0  # seconds that a request waits
_CURSORS = 4
_CURSOR_SECONDS = 120.0
_CHUNK = 1000  # rows that are converted at once
_ELEMENTS = 1000  # of a list or map that are shown
_TEXT = 10_000  # characters of a text that are shown
_DEEPEST = 20
_PAUSE, _RETRIES = 0.05, 60.0  # seconds; a checkpoint may be deleted while it is read: then there is a newer one


class UnknownCursor(HeadraceError):
    """The page before is too old to be continued."""

    class_code = "HR-7007"


@dataclass(slots=True)
class _Cursor:
    job: str
    state: tuple[str, str]
    checkpoint: int
    entries: Iterator[Document]
    used: float


class StateBrowser:
    """Reads states for REST."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-state-browser")
        self._running: dict[tuple[Any, ...], Future[Document]] = {}
        self._cursors: OrderedDict[str, _Cursor] = OrderedDict()

    # --- requests, in threads of the REST server --------------------------------------------------------------------

    def states(self, job: SparkJob) -> Document:
        """Return the states of the newest completed checkpoint."""
        return self._wait(("states", job.job_id), lambda: self._retried(job, _states))

    def page(
        self, job: SparkJob, operator: str, state: str, limit: int, key: str | None = None, after: str | None = None
    ) -> Document:
        """Return some entries of a state, those of one key if it is given (as JSON); `after` continues a page."""
        wanted = None if key is None else _parsed(key)
        request = ("page", job.job_id, operator, state, key, limit, after)
        if after is not None:
            return self._wait(request, lambda: self._continue(job, (operator, state), limit, after))
        return self._wait(
            request,
            lambda: self._retried(job, lambda reader: self._first(reader, job, (operator, state), limit, wanted)),
        )

    def _wait(self, request: tuple[Any, ...], work: Callable[[], Document]) -> Document:
        """Requests for the same wait for the same; one that was given up finds its result when it is sent again."""
        for one, future in list(self._running.items()):
            if future.done() and one != request:
                self._running.pop(one, None)
        future = self._running.get(request) or self._pool.submit(work)
        self._running[request] = future
        try:
            found = future.result(_WAIT)
        except TimeoutError:
            raise IllegalState(
                "HR-7014", f"the state is still being read after {_WAIT:.0f} s; send the request again"
            ) from None
        except HeadraceError:
            self._running.pop(request, None)
            raise
        self._running.pop(request, None)
        return found

    # --- the reading thread -----------------------------------------------------------------------------------------

    def _retried(self, job: SparkJob, work: Callable[[StateSnapshotReader], Document]) -> Document:
        """Run the work on the newest checkpoint; repeat it while a newer one replaces the files it reads."""
        end = self._clock() + _RETRIES
        failed: CompletedCheckpoint | None = None
        while True:
            service, newest = _newest(job)
            try:
                return work(StateSnapshotReader(service.snapshot_of(newest), open_store()))
            except (MissingObject, CorruptState):
                if newest == failed or self._clock() > end:
                    raise
                failed = newest
            time.sleep(_PAUSE)

    def _first(
        self, reader: StateSnapshotReader, job: SparkJob, state: tuple[str, str], limit: int, wanted: _Wanted | None
    ) -> Document:
        info = reader.state(*state)

        def found(groups: KeyGroupRange | None) -> Iterator[Document]:
            _check_size(job, reader, info, groups)
            entries = _entries(reader, info, groups)
            yield from entries if wanted is None else (one for one in entries if wanted.matches(one["key"]))

        def all_found() -> Iterator[Document]:
            is_missing = True
            for entry in found(groups):
                is_missing = False
                yield entry
            if is_missing and wanted is not None and not wanted.is_exact(info):
                yield from found(None)

        groups = None if wanted is None else wanted.groups(reader, info)
        checkpoint = reader.manifest.checkpoint_id
        return self._take(_Cursor(job.job_id, state, checkpoint, all_found(), self._clock()), limit)

    def _continue(self, job: SparkJob, state: tuple[str, str], limit: int, after: str) -> Document:
        cursor = self._cursors.pop(after, None)
        if cursor is None or (cursor.job, cursor.state) != (job.job_id, state):
            raise UnknownCursor(
                f"there is no page '{after}' to continue: it is older than {_CURSOR_SECONDS:.0f} s, or was continued before; "
                "start again without `after`"
            )
        return self._take(cursor, limit)

    def _take(self, cursor: _Cursor, limit: int) -> Document:
        self._drop_old()
        page: list[Document] = []
        ended = False
        while len(page) < limit and not ended:
            entry = next(cursor.entries, None)
            ended = entry is None
            if entry is not None:
                page.append(entry)
        token = None
        if not ended:
            token, cursor.used = secrets.token_hex(8), self._clock()
            self._cursors[token] = cursor
        return {"checkpoint": cursor.checkpoint, "entries": page, "next": token}

    def _drop_old(self) -> None:
        """Close what is not continued: an open page holds a copy of a subtask's state."""
        for token, cursor in list(self._cursors.items()):
            if len(self._cursors) >= _CURSORS or self._clock() - cursor.used > _CURSOR_SECONDS:
                with closing(self._cursors.pop(token).entries):  # type: ignore[type-var]
                    pass


def _newest(job: SparkJob) -> tuple[CheckpointService, CompletedCheckpoint]:
    newest = None if job.service is None else job.service.newest_checkpoint
    if job.service is not None and newest is not None:
        return job.service, newest
    if job.status.is_terminal:
        raise IllegalState(
            "HR-7014",
            f"job {job.job_id} has ended, and keeps no checkpoint; `headrace inspect PATH` shows what a savepoint holds",
        )
    raise IllegalState(
        "HR-7014", f"job {job.job_id} has no completed checkpoint yet; POST /jobs/:jobid/checkpoints takes one"
    )


def _states(reader: StateSnapshotReader) -> Document:
    return {
        "checkpoint": reader.manifest.checkpoint_id,
        "states": [
            {
                "operator": info.operator_id,
                "operator-name": info.operator,
                "uid": info.uid,
                "state": info.name,
                "kind": info.kind,
                "key_type": _type(info.schema, "key") if info.keyed else None,
                "value_type": _type(info.schema, "value") or "timer",
            }
            for info in reader.states()
        ],
    }


def _type(schema: pa.Schema, column: str) -> str | None:
    if column in schema.names:
        return str(schema.field(column).type)
    return "pickle" if f"{column}_pickle" in schema.names else None


def _check_size(job: SparkJob, reader: StateSnapshotReader, info: StateInfo, groups: KeyGroupRange | None) -> None:
    limit = job.configuration.get(config.STATE_BROWSER_LIMIT)
    for part in reader.parts(info.operator_id, info.name, groups):
        operator = reader.operator(info.operator_id)
        size = sum(piece.size for one in operator.subtasks if one.index == part.subtask for piece in one.pieces)
        if size > limit:
            raise IllegalState(
                "HR-7014",
                f"subtask {part.subtask} of operator '{info.operator}' has {size:,} bytes of state: more than the driver reads for "
                f"this page ({config.STATE_BROWSER_LIMIT.key} = {limit:,}); use `headrace inspect`, or spark.read",
            )


# ---- entries -------------------------------------------------------------------------------------------------------


def _entries(reader: StateSnapshotReader, info: StateInfo, groups: KeyGroupRange | None) -> Iterator[Document]:
    """Key, namespace and value; the rows of a list or a map are one entry."""
    for batch in reader.read(info.operator_id, info.name, groups):
        rows = (row for at in range(0, batch.num_rows, _CHUNK) for row in batch.slice(at, _CHUNK).to_pylist())
        if not info.keyed:
            yield from (
                {"key": None, "namespace": None, "value": _operator_value(row), "truncated": False} for row in rows
            )
            continue
        for address, of_key in groupby(rows, key=lambda row: (_cell(row, "key"), row.get("namespace"))):
            yield _entry(info, *address, of_key)


def _entry(info: StateInfo, key: Any, namespace: str | None, rows: Iterator[Document]) -> Document:
    values: list[Any] = []
    for row in rows:
        value = {"domain": row["domain"], "ts": row["ts"]} if info.kind == "timers" else _cell(row, "value")
        values.append([_cell(row, "map_key"), value] if info.kind == "map" else value)
    several = info.kind in {"list", "map", "timers"}
    return {
        "key": key,
        "namespace": namespace,
        "value": values[:_ELEMENTS] if several else values[-1],
        "truncated": several and len(values) > _ELEMENTS,
    }


def _operator_value(row: Document) -> Any:
    value = _cell(row, "value")
    keyed = "map_key" in row or "map_key_pickle" in row
    return [_cell(row, "map_key"), value] if keyed else value


def _cell(row: Document, column: str) -> Any:
    """Return a key or value as JSON has it; one without type as its text, unless it is made of plain values."""
    if column in row:
        return as_json(row[column])
    pickle, text = row.get(f"{column}_pickle"), row.get(f"{column}_text")
    if pickle is None:
        return None
    try:
        value = load_values(pickle, column)[0]
    except StateMigrationError:  # its class is not known in the driver
        return text
    plain = as_json(value)
    return text if plain is _OPAQUE else plain


_OPAQUE = object()


def as_json(value: Any, depth: int = 0) -> Any:
    """Plain values as JSON has them, everything else as text; the whole is opaque if it is no plain value.

    >>> as_json({"when": date(2026, 1, 2), "parts": (1, b"x")})
    {'when': '2026-01-02', 'parts': [1, 'x']}
    """
    match value:
        case None | bool():
            return value
        case str():
            return value if len(value) <= _TEXT else value[:_TEXT] + "..."
        case int():
            return value if -(1 << 53) <= value <= 1 << 53 else str(value)
        case float():
            return value if value == value and abs(value) != float("inf") else str(value)  # noqa: PLR0124 - NaN
        case bytes():
            return value[:_TEXT].decode("utf-8", "backslashreplace")
        case datetime() | date() | time_of_day():
            return value.isoformat()
        case Decimal():
            return str(value)
        case list() | tuple() if depth < _DEEPEST:
            return [_inner(one, depth) for one in value[:_ELEMENTS]]
        case dict() if depth < _DEEPEST:
            return {str(key): _inner(one, depth) for key, one in list(value.items())[:_ELEMENTS]}
    return _OPAQUE


def _inner(value: Any, depth: int) -> Any:
    found = as_json(value, depth + 1)
    return repr(value)[:_TEXT] if found is _OPAQUE else found


# ---- one key -------------------------------------------------------------------------------------------------------


_TEXTS = {"string", "large_string"}
_INTEGERS = {"int8", "int16", "int32", "int64"}
_DIGITS = re.compile(r"-?[0-9]{1,30}")


def _parsed(key: str) -> _Wanted:
    try:
        return _Wanted(json.loads(key))
    except (ValueError, RecursionError):
        raise InvalidArgument(
            "HR-7014", f'key is {key!r}, which is no JSON; a text needs quotation marks: key="word"'
        ) from None


@dataclass(slots=True)
class _Wanted:
    """A key that is looked for, as JSON has it."""

    key: Any

    def groups(self, reader: StateSnapshotReader, info: StateInfo) -> KeyGroupRange:
        """Return the key group of the key."""
        if not info.keyed or "key_group" not in info.schema.names or _type(info.schema, "key") is None:
            raise InvalidArgument("HR-7014", f"state '{info.name}' of operator '{info.operator}' has no keys")
        if _type(info.schema, "key") in _TEXTS and isinstance(self.key, int | float):
            self.key = json.dumps(self.key)  # written without quotation marks
        elif _type(info.schema, "key") in _INTEGERS and isinstance(self.key, str) and _DIGITS.fullmatch(self.key):
            self.key = int(self.key)  # a large one is shown with quotation marks, since JavaScript would round it
        try:
            group = key_group(_as_key(self.key), reader.operator(info.operator_id).max_parallelism)
        except (HeadraceError, TypeError) as error:
            raise InvalidArgument("HR-7014", f"{json.dumps(self.key)[:200]} cannot be a key: {error}") from None
        return KeyGroupRange(group, group)

    def is_exact(self, info: StateInfo) -> bool:
        """Return True if the key is looked up unchanged; a text may also show a date, bytes or an object."""
        is_plain = self.key is None or isinstance(self.key, bool | int | float)
        return is_plain or _type(info.schema, "key") in {*_TEXTS, *_INTEGERS, "bool", "float", "double"}

    def matches(self, key: Any) -> bool:
        """Return True if the key is shown as the requested text."""
        shown = as_json(self.key)
        if isinstance(key, dict) and isinstance(shown, list):  # a key of several columns
            return list(key.values()) == shown
        return bool(key == shown and isinstance(key, bool) == isinstance(shown, bool))


def _as_key(value: Any) -> Any:
    match value:
        case list():
            return tuple(map(_as_key, value))
        case dict():
            return tuple(map(_as_key, value.values()))
    return value


# ---- key groups ----------------------------------------------------------------------------------------------------


def key_groups(job: SparkJob) -> Document:
    """The key groups of each subtask with keyed state, and what the newest completed checkpoint holds of them."""
    service = job.service
    newest = None if service is None else service.newest_checkpoint
    stored = {}
    if service is not None and newest is not None:
        stored = {operator.id: operator for operator in service.snapshot_of(newest).manifest.operators}
    measures = job.subtasks()
    operators = []
    for vertex in job.plan.graph.vertices:
        seen = measures.get(vertex.id, {})
        for operator in vertex.operators:
            if not any(operator.spec.keys):
                continue
            found = stored.get(operator.id)
            same = found is not None and found.parallelism == vertex.parallelism
            sizes = {one.index: sum(piece.size for piece in one.pieces) for one in found.subtasks} if same else {}  # type: ignore[union-attr]
            subtasks = []
            for index in range(vertex.parallelism):
                groups = key_group_range(index, vertex.max_parallelism, vertex.parallelism)
                figures = seen[index].metrics.operators.get(operator.id, {}) if index in seen else {}
                keys = figures.get("stateEntries", figures.get("rocksdb.estimate-num-keys"))
                subtasks.append(
                    {
                        "index": index,
                        "first": groups.start,
                        "last": groups.end,
                        "keys": None if keys is None else int(keys),
                        "bytes": sizes.get(index, 0),
                        "records": seen[index].metrics.records_in if index in seen else 0,
                    }
                )
            operators.append({"id": operator.id, "name": operator.name, "subtasks": subtasks})
    return {
        "max_parallelism": max(vertex.max_parallelism for vertex in job.plan.graph.vertices),
        "operators": operators,
    }
