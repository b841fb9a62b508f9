"""Commands that look into snapshots: `headrace inspect` and `headrace diff`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.table import Table

from headrace.cli.output import Json, console, make_table, print_json, reported, visible
from headrace.savepoints.reader import StateInfo, StateSnapshotReader
from headrace.storage.layout import creator_of

Path = Annotated[str, typer.Argument(help="A checkpoint or savepoint: its directory or its _metadata.")]


def add_commands(app: typer.Typer) -> None:
    app.command()(reported(inspect))
    app.command()(reported(diff))


# --- inspect ----------------------------------------------------------------------------------------------------------


def inspect(
    path: Path,
    files: Annotated[bool, typer.Option("--files", help="List every file and the checkpoint that wrote it.")] = False,
    counts: Annotated[bool, typer.Option(help="Read all state and count its entries.")] = True,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file with its checksum.")] = False,
    json: Json = False,
) -> None:
    """Show what a checkpoint or savepoint holds: operators, states, sizes, keys, how evenly they are spread, files."""
    output = console()
    snapshot = StateSnapshotReader.open(path)
    if verify:
        snapshot.verify()
    manifest = snapshot.manifest
    if json:
        print_json(_document(snapshot, counts, files))
        return
    output.print(
        visible(
            f"{manifest.type.value} {manifest.checkpoint_id}{f', {manifest.format}' if manifest.format else ''} of job "
            f"'{manifest.job_name}' ({manifest.job_id}), attempt {manifest.attempt}\n{snapshot.snapshot.directory}"
        )
    )
    output.print(_operators(snapshot))
    output.print(_states(snapshot, counts))
    output.print(_files(snapshot, files))
    if verify:
        output.print("every file matches its checksum")


def _document(snapshot: StateSnapshotReader, counts: bool, files: bool) -> dict[str, Any]:
    manifest = snapshot.manifest
    states = []
    for info in snapshot.states():
        count = _count(snapshot, info) if counts else None
        states.append(
            {
                "operator": info.operator,
                "operator_id": info.operator_id,
                "uid": info.uid,
                "state": info.name,
                "kind": info.kind,
                "columns": {one.name: str(one.type) for one in info.schema},
                "backend": info.backend,
                "rows": None if count is None else count.rows,
                "keys": len(count.keys) if count is not None and info.keyed else None,
                "key_groups": len(count.by_group) if count is not None and info.keyed else None,
            }
        )
    return {
        "checkpoint": manifest.checkpoint_id,
        "type": manifest.type.value,
        "format": manifest.format,
        "job": manifest.job_id,
        "job_name": manifest.job_name,
        "directory": snapshot.snapshot.directory,
        "operators": [
            {"id": op.id, "name": op.name, "uid": op.uid, "parallelism": op.parallelism, "bytes": op.size}
            for op in manifest.operators
        ],
        "states": states,
        "files": snapshot.files() if files else len(snapshot.files()),
        "bytes": sum(snapshot.files().values()),
    }


def _operators(snapshot: StateSnapshotReader) -> Table:
    columns = ("operator", "uid", "id", "parallelism", "key groups", "finished", "bytes")
    table = make_table(*columns, right="parallelism, key groups, bytes", title="operators")
    for operator in snapshot.manifest.operators:
        finished = sum(subtask.finished for subtask in operator.subtasks)
        table.add_row(
            operator.name,
            operator.uid or "",
            operator.id[:8],
            str(operator.parallelism),
            str(operator.max_parallelism),
            f"{finished} of {operator.parallelism}" if finished else "",
            f"{operator.size:,}",
        )
    return table


@dataclass(slots=True)
class _Count:
    rows: int = 0
    keys: set[Any] = field(default_factory=set)
    by_group: Counter[int] = field(default_factory=Counter)

    @property
    def skew(self) -> str:
        """The size of the largest key group, as a multiple of the average."""
        if not self.by_group:
            return ""
        return f"{max(self.by_group.values()) * len(self.by_group) / sum(self.by_group.values()):.1f}"


def _states(snapshot: StateSnapshotReader, counts: bool) -> Table:
    names = ("operator", "state", "kind", "columns", "backend", "rows", "keys", "key groups", "skew")
    table = make_table(*names, right="rows, keys, key groups, skew", title="states")
    for info in snapshot.states():
        hidden = {"key_group", "namespace"}
        columns = ", ".join(f"{one.name} {one.type}" for one in info.schema if one.name not in hidden)
        count = _count(snapshot, info) if counts else None
        numbers = ["", "", "", ""]
        if count is not None:
            keys = f"{len(count.keys):,}" if info.keyed else ""
            numbers = [f"{count.rows:,}", keys, str(len(count.by_group) or ""), count.skew]
        table.add_row(info.operator, info.name, info.kind, columns, info.backend, *numbers)
    return table


def _count(snapshot: StateSnapshotReader, info: StateInfo) -> _Count:
    count = _Count()
    for batch in snapshot.read(info.operator_id, info.name):
        count.rows += batch.num_rows
        if info.keyed:
            count.by_group.update(batch.column("key_group").to_pylist())
            column = next((name for name in ("key", "key_pickle") if name in batch.schema.names), None)
            if column is not None:
                count.keys.update(map(_hashable, batch.column(column).to_pylist()))
    return count


def _hashable(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else value


def _files(snapshot: StateSnapshotReader, every: bool) -> Table:
    found = snapshot.files()
    title = f"files: {len(found)}, {sum(found.values()):,} bytes"
    table = make_table("written by", "file" if every else "files", "bytes", right="files, bytes", title=title)
    table.columns[1].overflow = "fold"
    own = f"checkpoint {snapshot.manifest.checkpoint_id}"
    by_creator: dict[str, list[tuple[str, int]]] = {}
    for path, size in sorted(found.items()):
        creator = creator_of(path)
        by_creator.setdefault(own if creator is None else f"checkpoint {creator}", []).append((path, size))
    for writer, ones in by_creator.items():
        if every:
            for path, size in ones:
                table.add_row(writer, path, f"{size:,}")
        else:
            table.add_row(writer, str(len(ones)), f"{sum(size for _, size in ones):,}")
    return table


# --- diff -------------------------------------------------------------------------------------------------------------


def diff(
    old: Path,
    new: Path,
    show: Annotated[int, typer.Option("--show", help="How many differing rows to show for each state.")] = 5,
    json: Json = False,
) -> None:
    """Compare two checkpoints or savepoints, state by state. Exit code 1 if they differ."""
    before, after = StateSnapshotReader.open(old), StateSnapshotReader.open(new)
    columns = ("operator", "state", "added", "removed", "changed", "same")
    table = make_table(*columns, right="added, removed, changed, same")
    samples: list[str] = []
    found: list[dict[str, Any]] = []
    differs = False
    # An operator is identified by its id: its name may differ between the two.
    names = {(info.operator_id, info.name): info.operator for info in (*after.states(), *before.states())}
    for (operator_id, state), operator in names.items():
        first, second = _rows(before, operator_id, state), _rows(after, operator_id, state)
        added, removed = second.keys() - first.keys(), first.keys() - second.keys()
        changed = [key for key in first.keys() & second.keys() if first[key] != second[key]]
        same = len(first) - len(removed) - len(changed)
        counts = [f"{len(part):,}" for part in (added, removed, changed)]
        table.add_row(operator, state, *counts, f"{same:,}")
        numbers = {"added": len(added), "removed": len(removed), "changed": len(changed), "same": same}
        found.append({"operator": operator, "operator_id": operator_id, "state": state, **numbers})
        differs = differs or bool(added or removed or changed)
        samples += [f"+ {state} {key} = {second[key]}" for key in _some(added, show)]
        samples += [f"- {state} {key} = {first[key]}" for key in _some(removed, show)]
        samples += [f"~ {state} {key} = {first[key]} -> {second[key]}" for key in _some(changed, show)]
    output = console()
    if json:
        print_json({"states": found, "examples": samples, "differs": differs})
    else:
        output.print(table)
        for line in samples:
            output.print(visible(line))
    if differs:
        raise typer.Exit(1)


def _some(keys: Any, count: int) -> list[Any]:
    return sorted(keys, key=str)[:count]


_IDENTITY = ("key", "key_pickle", "namespace", "map_key", "map_key_pickle", "pos", "subtask", "domain", "ts")


def _rows(snapshot: StateSnapshotReader, operator_id: str, state: str) -> dict[Any, Any]:
    """Return the rows of a state: their values by their identity."""
    if not any(info.operator_id == operator_id and info.name == state for info in snapshot.states()):
        return {}
    found = {}
    for batch in snapshot.read(operator_id, state):
        identity = [name for name in batch.schema.names if name in _IDENTITY]
        rest = [name for name in batch.schema.names if name not in (*_IDENTITY, "key_group") and "_text" not in name]
        for row in batch.to_pylist():
            key = _Shown(
                tuple(_hashable(row[name]) for name in identity if row[name] is not None), _text(row, identity)
            )
            found[key] = _Shown(tuple(_hashable(row[name]) for name in rest), _text(row, rest))
    return found


@dataclass(frozen=True, slots=True)
class _Shown:
    """A value that is compared by its content and shown as text."""

    content: tuple[Any, ...]
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text


def _text(row: dict[str, Any], names: list[str]) -> str:
    """Return the values of a row; for a pickle, the text that is stored with it."""
    shown = [row.get(name.replace("_pickle", "_text"), row[name]) for name in names]
    return ", ".join(str(value) for value in shown if value is not None)
