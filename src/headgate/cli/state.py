"""Commands that look into snapshots: `headgate inspect` and `headgate diff`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.table import Table

from headgate.cli.output import console, fail
from headgate.errors import HeadgateError
from headgate.savepoints.reader import StateInfo, StateSnapshotReader
from headgate.storage.layout import creator_of

__all__ = ["add_commands"]

Path = Annotated[str, typer.Argument(help="A checkpoint or savepoint: its directory or its _metadata.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (inspect, diff):
        app.command()(command)


# --- inspect ----------------------------------------------------------------------------------------------------------


def inspect(
    path: Path,
    files: Annotated[bool, typer.Option("--files", help="List every file and the checkpoint that wrote it.")] = False,
    counts: Annotated[bool, typer.Option(help="Read all state and count its entries.")] = True,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file with its checksum.")] = False,
) -> None:
    """Show what a checkpoint or savepoint holds: operators, states, sizes, keys, how evenly they are spread, files."""
    output = console()
    try:
        snapshot = StateSnapshotReader.open(path)
        if verify:
            snapshot.verify()
        manifest = snapshot.manifest
        output.print(
            f"{manifest.type.value} {manifest.checkpoint_id}{f', {manifest.format}' if manifest.format else ''} of job "
            f"'{manifest.job_name}' ({manifest.job_id}), attempt {manifest.attempt}\n{snapshot.snapshot.directory}",
            highlight=False,
        )
        output.print(_operators(snapshot))
        output.print(_states(snapshot, counts))
        output.print(_files(snapshot, files))
        if verify:
            output.print("every file matches its checksum")
    except HeadgateError as error:
        raise fail(error) from None


def _operators(snapshot: StateSnapshotReader) -> Table:
    table = Table(title="operators", title_justify="left")
    for column in ("operator", "uid", "id", "parallelism", "key groups", "finished", "bytes"):
        table.add_column(column, justify="right" if column in ("parallelism", "key groups", "bytes") else "left")
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
        """How many times the average the fullest key group holds."""
        if not self.by_group:
            return ""
        return f"{max(self.by_group.values()) * len(self.by_group) / sum(self.by_group.values()):.1f}"


def _states(snapshot: StateSnapshotReader, counts: bool) -> Table:
    table = Table(title="states", title_justify="left")
    for column in ("operator", "state", "kind", "columns", "backend", "rows", "keys", "key groups", "skew"):
        table.add_column(column, justify="right" if column in ("rows", "keys", "key groups", "skew") else "left")
    for info in snapshot.states():
        hidden = {"key_group", "namespace"}
        columns = ", ".join(f"{one.name} {one.type}" for one in info.schema if one.name not in hidden)
        count = _count(snapshot, info) if counts else None
        figures = ["", "", "", ""]
        if count is not None:
            keys = f"{len(count.keys):,}" if info.keyed else ""
            figures = [f"{count.rows:,}", keys, str(len(count.by_group) or ""), count.skew]
        table.add_row(info.operator, info.name, info.kind, columns, info.backend, *figures)
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
    table = Table(title=f"files: {len(found)}, {sum(found.values()):,} bytes", title_justify="left")
    table.add_column("written by")
    table.add_column("file" if every else "files", overflow="fold", justify="left" if every else "right")
    table.add_column("bytes", justify="right")
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
) -> None:
    """Compare two checkpoints or savepoints, state by state. Exit code 1 if they differ."""
    output = console()
    try:
        before, after = StateSnapshotReader.open(old), StateSnapshotReader.open(new)
        table = Table()
        for column in ("operator", "state", "added", "removed", "changed", "same"):
            table.add_column(column, justify="left" if column in ("operator", "state") else "right")
        samples: list[str] = []
        differs = False
        # An operator is known by its id: its name may be another one in each.
        names = {(info.operator_id, info.name): info.operator for info in (*after.states(), *before.states())}
        for (operator_id, state), operator in names.items():
            first, second = _rows(before, operator_id, state), _rows(after, operator_id, state)
            added, removed = second.keys() - first.keys(), first.keys() - second.keys()
            changed = [key for key in first.keys() & second.keys() if first[key] != second[key]]
            same = len(first) - len(removed) - len(changed)
            figures = [f"{len(part):,}" for part in (added, removed, changed)]
            table.add_row(operator, state, *figures, f"{same:,}")
            differs = differs or bool(added or removed or changed)
            samples += [f"+ {state} {key} = {second[key]}" for key in _some(added, show)]
            samples += [f"- {state} {key} = {first[key]}" for key in _some(removed, show)]
            samples += [f"~ {state} {key} = {first[key]} -> {second[key]}" for key in _some(changed, show)]
    except HeadgateError as error:
        raise fail(error) from None
    output.print(table)
    for line in samples:
        output.print(line, highlight=False, markup=False)
    if differs:
        raise typer.Exit(1)


def _some(keys: Any, count: int) -> list[Any]:
    return sorted(keys, key=str)[:count]


_IDENTITY = ("key", "key_pickle", "namespace", "map_key", "map_key_pickle", "pos", "subtask", "domain", "ts")


def _rows(snapshot: StateSnapshotReader, operator_id: str, state: str) -> dict[Any, Any]:
    """Rows by what identifies them."""
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
    """What is compared, and what people see of it."""

    content: tuple[Any, ...]
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text


def _text(row: dict[str, Any], names: list[str]) -> str:
    """The values of a row; of a pickle the text beside it."""
    shown = [row.get(name.replace("_pickle", "_text"), row[name]) for name in names]
    return ", ".join(str(value) for value in shown if value is not None)
