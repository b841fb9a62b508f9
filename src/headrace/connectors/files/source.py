"""A directory of files as a source, read once or watched for new files (SPEC R9.4).

What happens to files:

    appears            read, once; files are read whole, so move them in when they are complete
    hidden (. or _)    left alone, and so are directories named like that
    changed, appended  an error that names it, or with on_change="ignore" only what was there when it was found is read
    renamed            a new name is a new file: it is read (again)
    deleted            before it was read: like a corrupt record, with its path; afterwards: nothing, but its name stays known for 7 days:
                       another file of that name is a changed one
    empty              no records
    damaged            a line that cannot be read is a corrupt record; of a Parquet or compressed file the rest of it
    other columns      a Parquet file without a column of the type, or a CSV file with another header: like damaged
"""

from __future__ import annotations

import fnmatch
import logging
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from headrace.api.durable import durable
from headrace.api.functions import OutputTag
from headrace.api.sources import DynamicSource, QueueReader, ReaderContext, SourceReader, SplitEnumerator
from headrace.connectors.files.formats import FileFormat, FilePart, FileSplit, LineFormat, ParquetReader, PartReader
from headrace.connectors.values import CorruptRecord, CorruptRecords, check_choice, decoder, joined
from headrace.errors import InvalidArgument, StorageError
from headrace.records.batch import Batch
from headrace.records.types import TypeInformation, as_type

__all__ = ["FileSource"]

_LOG = logging.getLogger(__name__)
_FORMATS = ("text", "json", "csv", "parquet")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_PARTS_OF_A_SPLIT = 256
_SPLITS, _LEAST_SPLIT = 32, 1 << 20
_CAUGHT_UP_MS = 1000  # longer than the driver takes to give out the next split
_WATCH_FOR_EVER = 10_000
_REMEMBERED_SECONDS = 7 * 24 * 3600.0
_BROKEN = (pa.ArrowException, ValueError, EOFError, zlib.error)
_ALL_ROW_GROUPS = 1 << 30
# Bytes of a local name that are not UTF-8 are surrogates in Python, which checkpoints and Arrow cannot hold: there they are
# characters for private use, of a range that nothing else uses.
_PORTABLE = {0xDC00 + byte: 0x10FF00 + byte for byte in range(0x80, 0x100)}
_NATIVE = {portable: surrogate for surrogate, portable in _PORTABLE.items()}


class FileSource(DynamicSource[FileSplit]):
    """Records of the files at a path, or at several: a directory with all below it, one file, or a pattern with `*`.

    `format` is text, json, csv or parquet, or a `FileFormat`; files of lines may be compressed (`.gz` and the like). The path
    may have any scheme that fsspec knows. With `watch_ms` the source never ends: it looks for new files in that interval.
    Large files are cut into parts of `split_bytes`; with None they are not. What cannot be read goes where `on_corrupt`
    says: "fail", "skip", or an OutputTag.

    >>> FileSource("/data/in", "csv", "word string, n bigint").type
    row<word string, n bigint>
    """

    def __init__(
        self,
        path: str | Sequence[str],
        format: str | FileFormat,
        type_info: object = None,
        *,
        watch_ms: int | None = None,
        header: bool = False,
        delimiter: str = ",",
        on_corrupt: str | OutputTag = "fail",
        on_change: str = "fail",
        split_bytes: int | None = 32 << 20,
    ) -> None:
        self.paths = (path,) if isinstance(path, str) else tuple(path)
        self.name = f"FileSource('{', '.join(self.paths)}')"
        if not self.paths:
            raise InvalidArgument("HR-4101", "FileSource: give a path, or a list of them")
        if not isinstance(format, FileFormat) and format not in _FORMATS:
            raise InvalidArgument("HR-4501", f"{self.name}: unknown format {format!r}; use {', '.join(_FORMATS)}")
        check_choice(f"{self.name}: on_change", on_change, "fail", "ignore")
        if header and format != "csv":
            raise InvalidArgument("HR-4501", f"{self.name}: only csv files have a header")
        if (split_bytes is not None and split_bytes < 1) or (watch_ms is not None and watch_ms < 1):
            raise InvalidArgument("HR-4101", f"{self.name}: split_bytes and watch_ms must be positive")
        CorruptRecords(on_corrupt, self.name)
        self.format, self.watch_ms, self.split_bytes = format, watch_ms, split_bytes
        self.bounded = watch_ms is None
        self.on_corrupt, self.on_change = on_corrupt, on_change
        self.side_outputs = (on_corrupt,) if isinstance(on_corrupt, OutputTag) else ()
        self._delimiter = delimiter
        if isinstance(format, FileFormat):
            if type_info is not None and as_type(type_info) != format.type:
                raise InvalidArgument(
                    "HR-1227", f"{self.name}: the format gives {format.type}, not {as_type(type_info)}"
                )
            self.type = format.type
        elif format == "parquet":
            self.type = self._parquet_type() if type_info is None else as_type(type_info)
            if self.type.kind != "row":
                raise InvalidArgument(
                    "HR-1203", f"{self.name}: parquet needs a type with named fields, got {self.type}"
                )
        else:
            self.type = decoder(format, type_info, delimiter).type
        self.header = delimiter.join(self.type.schema.names) if header and self.type.schema is not None else None

    def _parquet_type(self) -> TypeInformation:
        """Return the columns of the first file, if no type is given."""
        fs, roots = self.places()
        first = next(iter(sorted(found.path for root in roots for found in _listed(fs, root))), None)
        if first is None:
            raise InvalidArgument("HR-4102", f"{self.name}: there is no file to read the columns from; give a type")
        with fs.open(_on_disk(first), "rb") as file:
            return as_type(pq.read_schema(file).remove_metadata())

    def places(self) -> tuple[Any, list[str]]:
        """Return the file system, and the paths on it."""
        found = [fsspec.core.url_to_fs(path) for path in self.paths]
        if any(fs != found[0][0] for fs, _ in found):
            raise InvalidArgument(
                "HR-4107", f"{self.name}: the paths are on several file systems; make a source of each, and union()"
            )
        return found[0][0], [root for _, root in found]

    @property
    def lines(self) -> bool:
        """Return True if files are lines."""
        return self.format.lines if isinstance(self.format, FileFormat) else self.format != "parquet"

    def line_format(self) -> FileFormat | None:
        """Return the format that reads lines; None for Parquet."""
        if isinstance(self.format, FileFormat):
            return self.format
        if self.format == "parquet":
            return None
        made = decoder(self.format, self.type if self.format != "text" else None, self._delimiter)
        return LineFormat(made, header=self.header)

    def enumerator(self, restored: Any | None) -> SplitEnumerator[FileSplit]:
        """Make the enumerator, which finds files on the driver."""
        return _FileEnumerator(self, restored)

    def reader(self, context: ReaderContext, splits: list[FileSplit]) -> SourceReader[FileSplit]:
        """Make the reader of one subtask."""
        return _FileReader(self, context, splits)


def _listed(fs: Any, root: str) -> Iterator[FilePart]:
    """The files at a path, each as one part; hidden ones are left out. FileNotFoundError if there is no such path."""
    fs.invalidate_cache()
    if any(mark in root for mark in "*?["):
        found = fs.glob(root, detail=True).values()
        yield from (_as_part(info) for info in found if info["type"] == "file" and not _is_hidden(info["name"], root))
        return
    if fs.isfile(root):
        yield _as_part(fs.info(root))
        return
    below = [root]
    while below:
        directory = below.pop()
        try:
            entries = fs.ls(directory, detail=True)
        except FileNotFoundError:
            if directory == root:
                raise
            continue  # it was deleted since the directory above it was listed
        for info in entries:
            if _is_hidden(info["name"], root):
                continue
            if info["type"] == "directory":
                below.append(info["name"])
            else:
                yield _as_part(info)


def _is_hidden(path: str, root: str) -> bool:
    name = path.rstrip("/").rpartition("/")[2]
    return name.startswith((".", "_")) and not fnmatch.fnmatch(root.rpartition("/")[2], name)


def _as_part(info: dict[str, Any]) -> FilePart:
    modified = info.get("mtime") or info.get("ETag") or info.get("created")
    size = int(info.get("size") or 0)
    path = info["name"].translate(_PORTABLE)
    return FilePart(path, size, modified if isinstance(modified, float) else str(modified), 0, size)


def _on_disk(path: str) -> str:
    """Return the name of a file as its file system knows it."""
    return path.translate(_NATIVE)


@durable("files-found-1")
class FilesFound(msgspec.Struct, frozen=True):
    """The state of the enumerator: path -> size and time of each file that it found, and since when listings lack one."""

    known: dict[str, tuple[int, float | str | None]]
    missing: dict[str, float] = {}


class _FileEnumerator(SplitEnumerator[FileSplit]):
    """Remembers every file that it gave, by name, size and time.

    A file that a listing lacks may be back in the next one: its file system is not mounted, or its directory is replaced.
    It is forgotten when it was in no listing for seven days.
    """

    def __init__(self, source: FileSource, restored: FilesFound | None) -> None:
        self._source = source
        self._fs, self._roots = source.places()
        self.interval = source.watch_ms or _WATCH_FOR_EVER
        self._known = {} if restored is None else dict(restored.known)
        self._missing = {} if restored is None else dict(restored.missing)
        self._absent_roots: set[str] = set()

    def discover(self) -> Sequence[FileSplit]:
        listed = self._list()
        new = [file for file in listed if file.path not in self._known]
        for file in listed if self._source.on_change == "fail" else ():
            before = self._known.get(file.path)
            if before is not None and before != (file.size, file.modified):
                raise changed(self._source, file.path, before[0], file.size)
        self._known.update((file.path, (file.size, file.modified)) for file in new)
        self._forget_deleted({file.path for file in listed})
        self.complete = self._source.watch_ms is None
        new.sort(key=lambda file: (str(file.modified), file.path))
        # Enough splits for many subtasks, also if there is little to read; but none so small that it is not worth asking for.
        step = max(_LEAST_SPLIT, sum(file.size for file in new) // _SPLITS)
        if self._source.split_bytes is not None:
            step = min(self._source.split_bytes, step)
        return self._grouped([part for file in new for part in self._parts(file, step)], step)

    def _list(self) -> list[FilePart]:
        """Return the files that are there now, each once: a file may be at several of the paths."""
        found: dict[str, FilePart] = {}
        absent = set()
        for root in self._roots:
            try:
                found.update((file.path, file) for file in _listed(self._fs, root))
            except FileNotFoundError:
                if not self._may_appear(root):
                    raise StorageError("HR-4102", f"{self._source.name}: there is no such file or directory") from None
                absent.add(root)
            except OSError as error:
                raise StorageError("HR-4103", f"{self._source.name}: cannot list its files: {error}") from error
        for root in sorted(absent - self._absent_roots):
            _LOG.warning(
                "%s: %s is not there now; it is listed again every %d ms, and files that were found before stay known",
                self._source.name,
                root,
                self.interval,
            )
        self._absent_roots = absent
        return list(found.values())

    def _may_appear(self, root: str) -> bool:
        """Return True if a path that is absent now may be there later: an object store has no empty directories."""
        if self._source.watch_ms is None:
            return False
        below = root.translate(_PORTABLE).rstrip("/") + "/"
        return "file" not in self._fs.protocol or any(f"{path}/".startswith(below) for path in self._known)

    def _forget_deleted(self, listed: set[str]) -> None:
        """Forget files that no listing had for long; a listing without one of the paths says nothing of its files."""
        now = time.time()
        lacking = self._missing if self._absent_roots else self._known
        self._missing = {path: self._missing.get(path, now) for path in lacking if path not in listed}
        if not self._absent_roots:
            for path in [path for path, since in self._missing.items() if now - since > _REMEMBERED_SECONDS]:
                del self._known[path], self._missing[path]

    def _parts(self, file: FilePart, step: int) -> list[FilePart]:
        """Large files are cut, so that several subtasks can read them."""
        whole = self._source.split_bytes is None
        if self._source.format == "parquet":
            return [replace(file, end=_ALL_ROW_GROUPS)] if whole else self._row_groups(file, step)
        if not self._source.lines or file.path.endswith(_COMPRESSED):
            return [replace(file, end=None)]
        if whole:
            return [file] if file.size else []
        return [replace(file, start=at, end=min(at + step, file.size)) for at in range(0, file.size, step)]

    def _row_groups(self, file: FilePart, step: int) -> list[FilePart]:
        if file.size <= step:  # small ones are opened by the workers only: many of them would keep the driver busy
            return [replace(file, end=_ALL_ROW_GROUPS)]
        try:
            with self._fs.open(_on_disk(file.path), "rb") as opened:
                groups = pq.ParquetFile(opened).num_row_groups
        except (*_BROKEN, OSError):
            groups = 1  # its reader will say what is wrong with it
        together = max(1, groups * step // file.size)
        return [replace(file, start=at, end=min(at + together, groups)) for at in range(0, groups, together)]

    def _grouped(self, parts: list[FilePart], step: int) -> list[FileSplit]:
        groups: list[list[FilePart]] = []
        weight = 0
        for part in parts:
            share = min(part.weight if part.end != _ALL_ROW_GROUPS else part.size, part.size) or 1
            if not groups or weight + share > step or len(groups[-1]) >= _PARTS_OF_A_SPLIT:
                groups.append([])
                weight = 0
            groups[-1].append(part)
            weight += share
        return [FileSplit(tuple(group)) for group in groups]

    def snapshot(self) -> Any:
        # A source that is read once has nothing to find any more.
        return FilesFound({}) if self.complete else FilesFound(dict(self._known), dict(self._missing))


def changed(source: FileSource, path: str, before: int, now: int) -> StorageError:
    """Return the error for a file that was found and then written again."""
    return StorageError(
        "HR-4104",
        f"{source.name}: {path} has changed since it was found (it had {before} bytes, now {now}): a file must be complete when "
        "it appears, and a new one needs a name of its own. Write it elsewhere and move it in; or set on_change='ignore' to "
        "read only what was there first",
    )


class _FileReader(QueueReader[FileSplit]):
    def __init__(self, source: FileSource, context: ReaderContext, splits: list[FileSplit]) -> None:
        super().__init__(splits)
        self._source, self._clock = source, context.clock
        self._fs, _ = source.places()
        self._format = source.line_format()
        self._open: PartReader | None = None
        self._corrupt = CorruptRecords(source.on_corrupt, source.name)
        self._idle_since: int | None = None
        self._caught_up = False
        self.backlog = bool(self._splits)

    def add_splits(self, splits: list[FileSplit]) -> None:
        super().add_splits(splits)
        self.backlog = not self._caught_up

    def poll(self, max_records: int) -> Batch | None:
        """Small files are read together, so that they make batches of a useful size."""
        if self.backlog:
            self._catch_up()
        batches: list[Batch] = []
        left, parts = max_records, _PARTS_OF_A_SPLIT
        while self._splits and left > 0 and parts > 0:
            batch = self._read(left)
            parts -= 1
            if batch is not None and len(batch):
                batches.append(batch)
                left -= len(batch)
        self.corrupt = self._corrupt.count
        return joined(batches) if len(batches) > 1 else batches[0] if batches else None

    def _catch_up(self) -> None:
        """End the backlog (the files of the first listing) when there was nothing to read for a while."""
        if self._splits:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._clock()
        elif self._clock() - self._idle_since >= _CAUGHT_UP_MS:
            self._caught_up, self.backlog = True, False

    def _read(self, max_records: int) -> Batch | None:
        """Return some records of the file that is being read; None if it turns out to be damaged or gone."""
        part = self._splits[0].parts[0]
        try:
            if self._open is None:
                self._open = self._open_part(part)
            batch, bad = self._open.read(max_records)
        except FileNotFoundError:
            self._give_up("the file is gone: it was deleted or renamed before it was read")
            return None
        except StorageError:
            raise
        except (*_BROKEN, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise StorageError("HR-4103", f"{self._source.name}: cannot read {part.path}: {error}") from error
            self._give_up(str(error))
            return None
        for place, one in bad:
            self._corrupt.add(place, one)
        self._splits[0] = FileSplit((self._open.part, *self._splits[0].parts[1:]))
        if self._open.finished:
            self._next_part()
        return batch

    def _open_part(self, part: FilePart) -> PartReader:
        path = _on_disk(part.path)
        size = self._fs.size(path)
        if size != part.size and self._source.on_change == "fail":
            raise changed(self._source, part.path, part.size, size)
        compression = "infer" if part.end is None else None
        file = self._fs.open(path, "rb", compression=compression)
        try:
            if part.end == _ALL_ROW_GROUPS:
                part = replace(part, end=pq.ParquetFile(file).num_row_groups)
            if self._format is None:
                return ParquetReader(part, file, self._source.type)
            return self._format.reader(part, file)
        except BaseException:
            file.close()
            raise

    def _give_up(self, reason: str) -> None:
        part = self._splits[0].parts[0]
        self._next_part()
        self._corrupt.add(part.path, CorruptRecord(0, b"", reason))

    def _next_part(self) -> None:
        self.close()
        rest = self._splits[0].parts[1:]
        if rest:
            self._splits[0] = FileSplit(rest)
        else:
            self._end_split()

    def take_side(self) -> list[tuple[OutputTag, Any]]:
        return list(self._corrupt.take())

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
