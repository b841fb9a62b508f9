"""Publish, load, verify and discard whole snapshots; called by the driver's I/O threads and the command line.

A snapshot exists once its `_metadata` does, and that is written last. It is never overwritten: of two drivers that use
the same checkpoint id, the later one fails its checkpoint here. Deletion removes the metadata first, so that an
incomplete checkpoint never looks complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from headrace.checkpoint.handles import CorruptState
from headrace.errors import IllegalState, StorageError
from headrace.storage.byte_handles import FileSegment, Handle
from headrace.storage.layout import (
    METADATA,
    AttemptId,
    JobLayout,
    PathKind,
    attempt_of,
    is_inside,
    make_ref,
    metadata_path,
    resolve_pointer,
    resolve_ref,
)
from headrace.storage.manifest import Manifest, decode_manifest, encode_manifest, handles_of, map_handles
from headrace.storage.objects import ObjectStore, create
from headrace.storage.reader import SnapshotReader
from headrace.storage.sealed import sealed_crc32

_NAMED_PROBLEMS: Final = 5


class Snapshot(msgspec.Struct, frozen=True):
    """A published checkpoint or savepoint: its manifest with absolute paths, its directory, size and checksum."""

    manifest: Manifest
    directory: str
    size: int
    crc32: int

    def files(self) -> dict[str, list[FileSegment]]:
        """Return the segments of each file."""
        found: dict[str, list[FileSegment]] = {}
        for handle in handles_of(self.manifest):
            if isinstance(handle, FileSegment):
                found.setdefault(handle.path, []).append(handle)
        return found


# ---- publish and load ----------------------------------------------------------------------------------------------


def publish(store: ObjectStore, manifest: Manifest, directory: str) -> Snapshot:
    """Make a snapshot exist.

    1. Its references become relative, so that its directory can be moved.
    2. `_metadata` is created; StorageError if there is one already. OutcomeUnknown: then nothing may be deleted.
    """
    # 1.
    stored = map_handles(manifest, lambda handle: _with_path(handle, lambda path: make_ref(path, directory)))
    if manifest.type.is_savepoint:
        _require_self_contained(manifest, directory)
    data = encode_manifest(stored)
    path = metadata_path(directory)
    # 2.
    if not create(store, path, data):
        raise StorageError(
            "HR-3107",
            f"cannot publish checkpoint {manifest.checkpoint_id}: '{path}' already exists; it belongs to another "
            "driver or job, and is never overwritten: the next checkpoint takes another id",
        )
    return Snapshot(manifest, directory, len(data), sealed_crc32(data))


def _require_self_contained(manifest: Manifest, directory: str) -> None:
    for handle in handles_of(manifest):
        if isinstance(handle, FileSegment) and not is_inside(handle.path, directory):
            raise IllegalState(
                "HR-3006",
                f"savepoint {manifest.checkpoint_id} cannot be published: it refers to '{handle.path}' outside of its "
                f"directory '{directory}', so it could not be moved",
            )


def _with_path(handle: Handle, change: Callable[[str], str]) -> Handle:
    return msgspec.structs.replace(handle, path=change(handle.path)) if isinstance(handle, FileSegment) else handle


def load_snapshot(store: ObjectStore, pointer: str) -> Snapshot:
    """Load the snapshot of a pointer: a directory or its `_metadata`.

    Its metadata is verified, its files are not (`require_intact`). StorageError if there is none, CorruptState if it is damaged.
    """
    directory = resolve_pointer(store, pointer)
    path = metadata_path(directory)
    data = store.read(path)
    stored = decode_manifest(data, path)
    manifest = map_handles(stored, lambda handle: _with_path(handle, lambda ref: resolve_ref(ref, directory)))
    return Snapshot(manifest, directory, len(data), sealed_crc32(data))


# ---- verify --------------------------------------------------------------------------------------------------------


def require_intact(store: ObjectStore, snapshot: Snapshot) -> None:
    """Read every file that a snapshot needs; CorruptState names those that are missing or damaged."""
    reader, problems = SnapshotReader(store), []
    for segment in dict.fromkeys(segment for segments in snapshot.files().values() for segment in segments):
        try:
            for _ in reader.chunks(segment):
                pass
        except CorruptState as error:
            problems.append(str(error))
    if problems:
        more = len(problems) - _NAMED_PROBLEMS
        named = "; ".join(problems[:_NAMED_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise CorruptState(f"'{snapshot.directory}' is damaged: {named}; restore from an older checkpoint or savepoint")


# ---- discard -------------------------------------------------------------------------------------------------------


def delete_each(store: ObjectStore, paths: Iterable[str]) -> dict[str, StorageError]:
    """Delete objects; one that cannot be deleted does not keep the others. Gives those, with the errors."""
    failed = {}
    for path in paths:
        try:
            store.delete(path)
        except StorageError as error:
            failed[path] = error
    return failed


def _delete_all(store: ObjectStore, paths: Iterable[str]) -> None:
    """Delete objects; an error is raised when the others are deleted."""
    for error in delete_each(store, paths).values():
        raise error


def discard_checkpoint(store: ObjectStore, layout: JobLayout, checkpoint_id: int) -> None:
    """Delete a completed checkpoint: its metadata, then its private files, then its directory.

    Shared files stay: the registry decides when they are deleted. It may be repeated; `headrace gc` finds what a crash left.
    """
    store.delete(layout.metadata(checkpoint_id))
    directory = layout.checkpoint(checkpoint_id)
    ours = {PathKind.PRIVATE, PathKind.TEMPORARY}
    _delete_all(store, (o.path for o in store.list_objects(directory) if layout.parse(o.path).kind in ours))
    store.remove_directory(directory)


def discard_claimed(store: ObjectStore, snapshot: Snapshot) -> None:
    """Delete a snapshot of another job that this one has claimed: its metadata, then the files in its directory.

    Shared files outside of its directory stay: the registry decides when they are deleted.
    """
    store.delete(metadata_path(snapshot.directory))
    _delete_all(store, sorted(_own_files(store, snapshot)))
    store.remove_directory(snapshot.directory)


def _own_files(store: ObjectStore, snapshot: Snapshot) -> set[str]:
    """Return the files in the directory of a snapshot that Headrace wrote, its metadata aside."""
    listed = (info.path for info in store.list_objects(snapshot.directory))
    written = {path for path in listed if attempt_of(path.rpartition("/")[2]) is not None}
    return written | {path for path in snapshot.files() if is_inside(path, snapshot.directory)}


def discard_pending(
    store: ObjectStore, directory: str, attempt: AttemptId | None, published: Snapshot | None = None
) -> None:
    """Delete what an attempt wrote for a checkpoint that will not complete (SPEC R5.8), or all of a savepoint (None).

    Of a checkpoint only its own private files: another driver may write in the same directory. `published` is given if
    the metadata was written, but the log's entry went to another driver; never after OutcomeUnknown.
    """
    if published is not None:
        store.delete(metadata_path(published.directory))
    listed = (info.path for info in store.list_objects(directory))
    _delete_all(store, (path for path in listed if attempt in (None, attempt_of(path.rpartition("/")[2]))))
    store.remove_directory(directory)


class DisposedSavepoint(msgspec.Struct, frozen=True):
    """A savepoint that was deleted; `left` are files that Headrace did not write."""

    deleted: int
    left: tuple[str, ...]


def dispose_savepoint(store: ObjectStore, pointer: str) -> DisposedSavepoint:
    """Delete a savepoint for good (SPEC R8.7): its files, then its metadata, then its directory.

    The metadata is deleted last: an interrupted disposal can be repeated, and until then the savepoint is refused as
    damaged. IllegalState if the pointer names a checkpoint.
    """
    snapshot = load_snapshot(store, pointer)
    if not snapshot.manifest.type.is_savepoint:
        raise IllegalState(
            "HR-3006",
            f"'{pointer}' is a {snapshot.manifest.type.value}, not a savepoint: the job that took it deletes it; "
            "use headrace gc for what a dead job has left",
        )
    directory = snapshot.directory
    listed = {info.path for info in store.list_objects(directory)}
    to_delete = _own_files(store, snapshot)
    for path in sorted(to_delete):
        store.delete(path)
    store.delete(f"{directory}/{METADATA}")
    store.remove_directory(directory)
    return DisposedSavepoint(len(to_delete) + 1, tuple(sorted(listed - to_delete - {metadata_path(directory)})))
