"""Which files of older checkpoints a new one may refer to. SPEC R7.4"""

from __future__ import annotations

import pytest

from headrace.checkpoint.handles import FileRef, Payload
from headrace.state.rocksdb.increments import FileCheckpoint, Uploads


def file(name, checkpoint):
    return FileRef(name, Payload(f"{checkpoint}-{name}", 1, 1), shared=True, created_by=checkpoint)


def stored(*files):
    return FileCheckpoint(0, {one.name: one for one in files})


def names(base):
    return set() if base is None else {one.payload.id for one in base.files.values()}


@pytest.fixture
def uploads():
    found = Uploads()
    for number in (1, 2):
        found.begin(number, found.base())
    found.add(2, stored(file("a", 2), file("b", 2)))
    return found


def test_a_checkpoint_refers_to_the_files_of_the_last_confirmed_one(uploads):
    assert uploads.base() is None
    uploads.complete(2)
    assert names(uploads.base()) == {"2-a", "2-b"}


def test_files_that_a_running_checkpoint_stores_again_are_not_referred_to(uploads):
    """It may be confirmed first, and then the older copies are deleted."""
    uploads.begin(3, uploads.base())
    uploads.complete(2)
    assert uploads.base() is None
    uploads.begin(4, uploads.base())
    uploads.add(3, stored(file("a", 3), file("b", 3)))
    assert uploads.base() is None
    uploads.complete(3)
    assert uploads.base() is None  # 4 stores them again
    uploads.add(4, stored(file("a", 4), file("b", 4)))
    uploads.complete(4)
    assert names(uploads.base()) == {"4-a", "4-b"}


def test_files_that_a_running_checkpoint_refers_to_are_referred_to_as_well(uploads):
    uploads.complete(2)
    uploads.begin(3, uploads.base())
    assert names(uploads.base()) == {"2-a", "2-b"}


def test_a_checkpoint_that_is_aborted_or_subsumed_keeps_no_other_from_files(uploads):
    uploads.begin(3, None)
    uploads.complete(2)
    uploads.abort(3)
    assert names(uploads.base()) == {"2-a", "2-b"}


def test_a_full_checkpoint_that_runs_stores_everything_again(uploads):
    uploads.complete(2)
    uploads.begin(3, None)
    assert uploads.base() is None
