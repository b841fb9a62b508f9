"""The job log: which driver may complete checkpoints, and under which number. Written by the driver's I/O threads.

    <job>/log/000000000001   epoch 1 starts
    <job>/log/000000000002   chk-1 completed               commit number 2
    <job>/log/000000000003   epoch 2 starts from chk-1     the driver of epoch 1 cannot claim this number any more

An entry is claimed by create-if-absent, so each number belongs to one driver. A driver that cannot claim the next one is
superseded, and stops before it notifies or commits anything. The number of the entry that completes a checkpoint is its
commit number: it always grows, while checkpoint ids repeat after a step back. A job that begins with a snapshot of another
one continues its numbers: they are those of the entries plus `numbers_after`.

A driver that resumes chooses a checkpoint from the newest entry and claims the next number. If the driver that it replaces
has written an entry in between, it chooses again (`LogMoved`): else it would drop what was completed in between.

Every entry holds the whole state of the log: only the newest is read, and old ones are deleted. That must not make
their numbers available again, so a claim is valid only if the entry before it is still the one it was built on.
"""

from __future__ import annotations

import enum
import secrets
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NewType, TypeAlias

import msgspec

from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.checkpoint.handles import CorruptState
from headrace.errors import IllegalState, StorageError
from headrace.ids import JobId
from headrace.storage.layout import AttemptId, JobLayout, PathKind, is_job_id, make_ref, metadata_path, resolve_ref
from headrace.storage.objects import (
    MissingObject,
    ObjectStore,
    OutcomeUnknown,
    check_create_if_absent,
    create,
    normalise,
)
from headrace.storage.published_snapshots import Snapshot, load_snapshot
from headrace.storage.sealed import HEADER_SIZE, actual_crc32, seal, sealed_crc32, unseal

CommitNumber = NewType("CommitNumber", int)
"""The number of the log entry that completed a checkpoint: never repeated in a job, used as transaction id by sinks."""

MAGIC: Final = b"\x89HRL"
FORMAT_VERSION: Final = 1
KEPT_ENTRIES: Final = 16


class SupersededError(IllegalState):
    """Another driver has taken the job over; this one must stop without notifying or committing anything."""

    class_code = "HR-3002"


class LogMoved(IllegalState):
    """The driver that is to be replaced has written to the log since it was read: read it again, and choose again."""

    class_code = "HR-3003"


class CompletedRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A completed checkpoint, or a savepoint the job was stopped with.

    `pointer` is relative to the job's directory for checkpoints, absolute for savepoints; `crc32` is of the metadata, so
    that no other file is mistaken for it.
    """

    checkpoint_id: int
    commit: CommitNumber
    pointer: str
    crc32: int

    @property
    def is_savepoint(self) -> bool:
        """Return True if the snapshot is a savepoint, outside of the job's checkpoint directory."""
        return self.pointer != f"chk-{self.checkpoint_id}"


class EpochStarted(msgspec.Struct, frozen=True, tag="epoch started", forbid_unknown_fields=True):
    """A driver started or resumed the job from this snapshot (None: from nothing)."""

    restored: str | None


class CheckpointCompleted(msgspec.Struct, frozen=True, tag="checkpoint completed", forbid_unknown_fields=True):
    """A checkpoint is complete: tasks may be notified, sinks may commit."""

    checkpoint: CompletedRef


class JobEndClaimed(msgspec.Struct, frozen=True, tag="job ended", forbid_unknown_fields=True):
    """The job is over: what the entry does not retain may be deleted from now on, and not before."""

    status: str


Event: TypeAlias = EpochStarted | CheckpointCompleted | JobEndClaimed


class LogEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry, and with it the state of the whole log.

    `previous` is the checksum of the entry before, 0 for the first; `driver` is a random name. `retained` are the
    completed snapshots that a restore may use, oldest first; `origin` is the snapshot of another job that this one began
    with: it is what is restored until the first checkpoint is complete. `commits` are the last completions, first those of
    the job that `origin` is of; its numbers go up to `numbers_after`.
    """

    seq: int
    previous: int
    job_id: JobId
    job_name: str
    started_ms: int
    epoch: int
    driver: str
    time_ms: int
    event: Event
    retained: tuple[CompletedRef, ...] = ()
    origin: str | None = None
    commits: Commits = Commits()
    numbers_after: int = 0

    @property
    def last_number(self) -> int:
        """No commit number of this job is higher."""
        return self.numbers_after + self.seq

    def retained_up_to(self, number: int | None) -> tuple[CompletedRef, ...]:
        """The retained snapshots up to a commit number, oldest first: later ones are dropped by a step back. None: none."""
        return tuple(ref for ref in self.retained if number is not None and ref.commit <= number)

    def newest_first(self, prefer_checkpoints: bool = False) -> list[CompletedRef]:
        """Return the snapshots to restore from, in this order; optionally checkpoints before a newer savepoint."""
        return sorted(
            self.retained, key=lambda ref: (prefer_checkpoints and not ref.is_savepoint, ref.commit), reverse=True
        )


class _Read(msgspec.Struct, frozen=True):
    """An entry and its checksum."""

    entry: LogEntry
    crc32: int


_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: Final = msgspec.msgpack.Decoder(LogEntry, strict=True)


def encode_entry(entry: LogEntry) -> bytes:
    return seal(MAGIC, FORMAT_VERSION, _ENCODER.encode(entry))


def decode_entry(data: bytes, where: str) -> LogEntry:
    """Decode an entry; StorageError if the bytes are damaged, of a newer version, or not one."""
    payload = unseal(data, MAGIC, FORMAT_VERSION, f"the log entry '{where}'")
    try:
        return _DECODER.decode(payload)
    except msgspec.MsgspecError as error:
        raise StorageError(
            "HR-3105", f"the log entry '{where}' cannot be read: {error}; it was not written by Headrace"
        ) from None


# ---- reading -------------------------------------------------------------------------------------------------------


def read_log(store: ObjectStore, layout: JobLayout) -> LogEntry | None:
    """The newest entry of a job's log: its epoch, and the checkpoints a restore may use. None if there is no log."""
    found = _newest(store, layout)
    return None if found is None else found.entry


def _newest(store: ObjectStore, layout: JobLayout) -> _Read | None:
    while True:
        numbers = _numbers(store, layout)
        if not numbers:
            return None
        path = layout.log_entry(numbers[-1])
        try:
            data = store.read(path)
        except MissingObject:
            continue  # deleted by its driver since the listing
        entry = decode_entry(data, path)
        if entry.seq != numbers[-1]:
            raise CorruptState(f"the log entry '{path}' says that it is number {entry.seq}; it was moved or copied")
        return _Read(entry, sealed_crc32(data))


def _numbers(store: ObjectStore, layout: JobLayout) -> list[int]:
    found = (layout.parse(f"{layout.log}/{name}") for name in store.list_names(layout.log))
    return sorted(parsed.seq for parsed in found if parsed.kind is PathKind.LOG and parsed.seq is not None)


class DamagedLog(msgspec.Struct, frozen=True):
    """A job whose newest log entry is damaged; `older` is the newest entry that can be read, if any.

    Without one, `job_name` is taken from its checkpoints, if they can be read.
    """

    job_id: JobId
    problem: str
    older: LogEntry | None
    job_name: str | None


def read_logs(store: ObjectStore, directory: str) -> tuple[list[LogEntry], list[DamagedLog]]:
    """The newest log entry of every job in a checkpoint directory, the job that was started last first; and damaged logs."""
    root = normalise(directory)
    layouts = [JobLayout(root, JobId(name)) for name in store.list_names(root) if is_job_id(name)]
    layouts.append(JobLayout(root, JobId(""), create_subdir=False))
    entries, damaged = [], []
    for layout in layouts:
        try:
            entry = read_log(store, layout)
        except CorruptState as error:
            older = _newest_readable(store, layout)
            name = _name_of(store, layout) if older is None else older.job_name
            damaged.append(DamagedLog(layout.job_id, str(error), older, name))
        else:
            entries += [] if entry is None else [entry]
    return sorted(entries, key=_start_order, reverse=True), damaged


def _start_order(entry: LogEntry) -> tuple[int, str]:
    return entry.started_ms, entry.job_id


def _newest_readable(store: ObjectStore, layout: JobLayout) -> LogEntry | None:
    for number in reversed(_numbers(store, layout)):
        with suppress(CorruptState, MissingObject):
            return decode_entry(store.read(layout.log_entry(number)), layout.log_entry(number))
    return None


def _name_of(store: ObjectStore, layout: JobLayout) -> str | None:
    """Return the name of the job that wrote the checkpoints in a directory."""
    for name in store.list_names(layout.job):
        if name.startswith("chk-"):
            with suppress(CorruptState, MissingObject):
                return load_snapshot(store, f"{layout.job}/{name}").manifest.job_name
    return None


def newest_job(store: ObjectStore, directory: str, name: str, warn: Callable[[str], None] = warnings.warn) -> LogEntry:
    """Return the job that `--resume` continues: the last one started under this name; StorageError if there is none.

    The drivers' clocks tell which one was started last. A new job does not read the logs of all others to be sure to come
    after them: a directory on an object store may have hundreds.

    CorruptState if the log of that job is damaged; those of other jobs are skipped with a warning.
    """
    jobs, damaged = read_logs(store, directory)
    found = next((entry for entry in jobs if entry.job_name == name), None)
    for log in damaged:
        newer = found is None or log.older is None or _start_order(log.older) > _start_order(found)
        if log.job_name == name and newer:  # or it may be
            raise CorruptState(f"cannot resume job {log.job_id} ('{name}'): its log is damaged: {log.problem}")
        warn(f"job {log.job_id} is skipped, its log is DAMAGED: {log.problem}")
    if found is not None:
        return found
    others = ", ".join(sorted({f"'{entry.job_name}'" for entry in jobs})) or "none"
    raise MissingObject(
        "HR-3001",
        f"cannot resume: there is no job named '{name}' in '{directory}' (jobs there: {others}; damaged logs: "
        f"{len(damaged)}); check pipeline.name and execution.checkpointing.dir, or start without --resume",
    )


def load_completed(store: ObjectStore, layout: JobLayout, ref: CompletedRef) -> Snapshot:
    """Load a snapshot that the log names; CorruptState if it is damaged, or not the file the log means."""
    directory = resolve_ref(ref.pointer, layout.job)
    snapshot = load_snapshot(store, directory)
    if snapshot.crc32 != ref.crc32:
        raise CorruptState(
            f"'{metadata_path(directory)}' is damaged: it is not the file that completed checkpoint {ref.checkpoint_id} "
            f"as number {ref.commit} of the job log; restore from an older checkpoint or savepoint"
        )
    return snapshot


def numbers_of(store: ObjectStore, snapshot: Snapshot, layouts: Collection[JobLayout]) -> tuple[Commits, int]:
    """The completions that what a snapshot of another job holds was committed under, and that job's highest number.

    The metadata was written before the entry of the log, so its own number is exact only in that entry; for a savepoint
    that the job was stopped with it always is. `layouts` are where the log may be; it need not be there any more.
    """
    manifest = snapshot.manifest
    commits = manifest.commits.add(manifest.checkpoint_id, 1) if not manifest.commits.pairs else manifest.commits
    highest = commits.last
    for layout in layouts:
        try:
            entry = read_log(store, layout)
        except CorruptState:
            continue
        if entry is not None and entry.job_id == manifest.job_id:
            highest = max(highest, entry.last_number)
            for ref in entry.retained:
                if (ref.checkpoint_id, ref.crc32) == (manifest.checkpoint_id, snapshot.crc32):
                    commits = Commits(manifest.commits.pairs[:-1]).add(ref.checkpoint_id, ref.commit)
    return commits, highest


# ---- writing -------------------------------------------------------------------------------------------------------


class LogStatus(enum.Enum):
    """The leadership of a driver, as far as it knows."""

    LEADING = "leading"
    UNCERTAIN = "uncertain"  # a claim got no answer: settle() before anything else
    SUPERSEDED = "superseded"


class JobLog:
    """The log of a driver that has claimed an epoch.

    >>> from headrace.testing.storage_faults import MemoryStore
    >>> layout = JobLayout.of("/data", JobId("a" * 32))
    >>> log = JobLog.start(MemoryStore(), layout, "wordcount", clock=lambda: 0)
    >>> log.attempt(0)
    AttemptId(epoch=1, restart=0)
    """

    def __init__(self, store: ObjectStore, layout: JobLayout, newest: _Read | None, clock: Callable[[], int]) -> None:
        """Use `start`."""
        self._store = store
        self._layout = layout
        self._newest = newest
        self._clock = clock
        self._driver = secrets.token_hex(8)
        self._oldest = 1
        self._commits = Commits()
        self._retained: tuple[CompletedRef, ...] = ()
        self._status = LogStatus.LEADING

    @classmethod
    def start(
        cls,
        store: ObjectStore,
        layout: JobLayout,
        job_name: str,
        *,
        clock: Callable[[], int],
        resumed: LogEntry | None = None,
        restored: CompletedRef | None = None,
        origin: str | None = None,
        commits: Commits = NO_COMMITS,
        numbers_after: int = 0,
    ) -> JobLog:
        """Resume a job, or start a new one, as a new epoch; SupersededError if another driver does so at the same time.

        `resumed` is the entry that `restored` was chosen from. LogMoved if the log has a newer one of the same epoch: the
        driver of that epoch lives, and what it has completed since must not be dropped.
        `restored` is the snapshot of this job's log that is restored; later ones are dropped (a step back).
        `origin` is a snapshot from elsewhere, with the `commits` of its job. Commit numbers are above `numbers_after`.
        `clock` gives milliseconds since 1970.
        """
        check_create_if_absent(store, layout.log)
        newest = _newest(store, layout)
        if resumed is not None:
            _check_unmoved(resumed, newest, layout)
        log = cls(store, layout, newest, clock)
        before = None if newest is None else newest.entry
        same_job = before is not None and before.job_id == layout.job_id
        now = clock()
        if before is not None:
            numbers_after = max(numbers_after, before.numbers_after)
            if same_job:
                commits = before.commits.up_to(before.numbers_after if restored is None else restored.commit)
        commit = None if restored is None else restored.commit
        entry = LogEntry(
            seq=log._next_seq(),
            previous=log._previous(),
            job_id=layout.job_id,
            job_name=job_name,
            started_ms=before.started_ms if before is not None and same_job else now,
            epoch=1 if before is None else before.epoch + 1,
            driver=log._driver,
            time_ms=now,
            event=EpochStarted(origin if restored is None else restored.pointer),
            retained=before.retained_up_to(commit) if before is not None and same_job else (),
            origin=before.origin if before is not None and same_job and origin is None else origin,
            commits=commits,
            numbers_after=numbers_after,
        )
        try:
            log._claim(entry)
        except SupersededError:
            if resumed is not None:
                _check_unmoved(resumed, _newest(store, layout), layout)
            raise
        log._delete_old_entries()
        return log

    @property
    def state(self) -> LogEntry:
        """The newest entry of this driver."""
        assert self._newest is not None
        return self._newest.entry

    def attempt(self, restart: int) -> AttemptId:
        """Return the attempt after this number of restarts within the epoch."""
        return AttemptId(self.state.epoch, restart)

    @property
    def commits(self) -> Commits:
        """The last completions, without those dropped by a step back."""
        return self._commits

    @property
    def next_number(self) -> CommitNumber:
        """The commit number of the next entry."""
        return CommitNumber(self.state.numbers_after + self._next_seq())

    def step_back_to(self, number: int | None) -> None:
        """Drop completions after a number: an older checkpoint is restored, and the next entry does not retain newer ones.

        None: what the job began with.
        """
        self._commits = self._commits.up_to(self.state.numbers_after if number is None else number)
        self._retained = tuple(ref for ref in self._retained if number is not None and ref.commit <= number)

    def complete(self, snapshot: Snapshot, subsumed: Collection[CommitNumber] = ()) -> CompletedRef:
        """Complete a published checkpoint, or a savepoint the job is stopped with; its `commit` is the commit number.

        1. Build the entry on the newest one: the snapshot is retained, those it subsumes are not.
        2. Claim the entry. SupersededError: stop. OutcomeUnknown: keep all files, then call `settle` until it succeeds.
        3. Now the checkpoint is complete. Delete entries that are too old.
        """
        if self._status is LogStatus.UNCERTAIN:
            raise IllegalState("the outcome of the last completion is not known: call settle() first")
        # 1.
        number = self.next_number
        pointer = make_ref(snapshot.directory, self._layout.job)
        ref = CompletedRef(snapshot.manifest.checkpoint_id, number, pointer, snapshot.crc32)
        retained = (*(old for old in self._retained if old.commit not in subsumed), ref)
        # 2.
        commits = self._commits.add(ref.checkpoint_id, number)
        claimed = self._claim(self._following(CheckpointCompleted(ref), retained, commits))
        assert claimed.event == CheckpointCompleted(ref)
        # 3.
        self._delete_old_entries()
        return ref

    def end(self, status: str, discarded: Collection[int]) -> None:
        """Claim that the job is over, before anything of it is deleted; SupersededError: delete nothing.

        `discarded` are the commit numbers of the checkpoints that will be deleted. After OutcomeUnknown, call it again.
        """
        if self._status is LogStatus.UNCERTAIN:
            self.settle()
        if not isinstance(self.state.event, JobEndClaimed):
            retained = tuple(ref for ref in self._retained if ref.commit not in discarded)
            self._claim(self._following(JobEndClaimed(status), retained, self._commits))

    def settle(self) -> CompletedRef | None:
        """Find out after OutcomeUnknown: returns the snapshot if it is complete, None if it never will be.

        The number is claimed with an entry that changes nothing: either it was free, and the lost claim cannot succeed
        any more, or the existing entry is the lost one. Until this has returned no checkpoint may be triggered: tasks
        would build on an older one, whose files are deleted if the lost claim succeeded.
        """
        if self._status is not LogStatus.UNCERTAIN:
            return None
        restored = self._retained[-1].pointer if self._retained else self.state.origin
        claimed = self._claim(self._following(EpochStarted(restored), self._retained, self._commits))
        return claimed.event.checkpoint if isinstance(claimed.event, CheckpointCompleted) else None

    def _following(self, event: Event, retained: tuple[CompletedRef, ...], commits: Commits) -> LogEntry:
        return msgspec.structs.replace(
            self.state,
            seq=self._next_seq(),
            previous=self._previous(),
            time_ms=self._clock(),
            event=event,
            retained=retained,
            commits=commits,
        )

    def _next_seq(self) -> int:
        return 1 if self._newest is None else self._newest.entry.seq + 1

    def _previous(self) -> int:
        return 0 if self._newest is None else self._newest.crc32

    def check_leading(self) -> None:
        """Raise SupersededError if another driver has taken over since; before deleting what it may need. For any thread.

        Where there is no next entry, our newest one must still be there: old entries are deleted, the oldest first.
        """
        seq = self.state.seq
        if self._status is not LogStatus.SUPERSEDED:
            found = self._read(self._layout.log_entry(seq + 1))
            if found is not None and found.entry.driver == self._driver:
                return
            if found is None and self._store.exists(self._layout.log_entry(seq)):
                return
        raise self._superseded(seq + 1)

    def _claim(self, entry: LogEntry) -> LogEntry:
        """Write the next entry; returns the one that has its number: an earlier one of this driver if its claim succeeded."""
        if self._status is LogStatus.SUPERSEDED:
            raise self._superseded(entry.seq)
        path, data = self._layout.log_entry(entry.seq), encode_entry(entry)
        try:
            created = create(self._store, path, data)
            ours = _Read(entry, sealed_crc32(data)) if created else self._lost_claim(path)
            if ours is None or not self._built_on_the_newest(ours.entry):
                self._give_up(path if created else None)
                raise self._superseded(entry.seq)
        except OutcomeUnknown:
            self._status = LogStatus.UNCERTAIN
            raise
        self._newest = ours
        self._commits, self._retained = ours.entry.commits, ours.entry.retained
        self._status = LogStatus.LEADING
        return ours.entry

    def _lost_claim(self, path: str) -> _Read | None:
        """Return the entry with this number, if this driver wrote it."""
        with _unknown_if_it_fails(path):
            found = self._read(path)
        return found if found is not None and found.entry.driver == self._driver else None

    def _give_up(self, stale: str | None) -> None:
        self._status = LogStatus.SUPERSEDED
        if stale is not None:
            with suppress(StorageError):
                self._store.delete(stale)

    def _built_on_the_newest(self, entry: LogEntry) -> bool:
        """Return True if the number was the next one, not one that was used and deleted before."""
        before = self._layout.log_entry(entry.seq - 1)
        with _unknown_if_it_fails(self._layout.log_entry(entry.seq)):
            if entry.seq == 1:
                return _numbers(self._store, self._layout) == [1]
            try:
                data = self._store.read(before)
            except MissingObject:
                return False
        # Not decoded: damage to an old entry, in its content or in its checksum, must not stop a driver that does not
        # need it any more.
        return len(data) >= HEADER_SIZE and entry.previous in (sealed_crc32(data), actual_crc32(data))

    def _read(self, path: str) -> _Read | None:
        try:
            data = self._store.read(path)
        except MissingObject:
            return None
        return _Read(decode_entry(data, path), sealed_crc32(data))

    def _superseded(self, seq: int) -> SupersededError:
        with suppress(StorageError):
            if not _numbers(self._store, self._layout):
                return SupersededError(
                    f"the log of job '{self._layout.job_id}' is gone: '{self._layout.log}' was deleted under the running job, which "
                    "stops without committing anything; do not delete the directory of a job that runs"
                )
        return SupersededError(
            f"another driver has taken over job '{self._layout.job_id}' (entry {seq} of '{self._layout.log}' is not ours); "
            "this one stops without committing anything"
        )

    def _delete_old_entries(self) -> None:
        """Delete old entries, oldest first and without gaps.

        With a gap a stale claim would find its predecessor and look valid. So the first failure stops the deletion.
        """
        try:
            if self._oldest == 1:
                self._oldest = _numbers(self._store, self._layout)[0]
            while self._oldest <= self.state.seq - KEPT_ENTRIES:
                self._store.delete(self._layout.log_entry(self._oldest))
                self._oldest += 1
        except StorageError:
            return  # the next completion tries again


def _check_unmoved(read: LogEntry, newest: _Read | None, layout: JobLayout) -> None:
    """Raise LogMoved if the driver of an entry has written another one since."""
    if newest is None or (newest.entry != read and newest.entry.epoch == read.epoch):
        raise LogMoved(f"the driver of job '{layout.job_id}' has written to '{layout.log}' since it was read")
    if newest.entry.epoch != read.epoch:
        raise SupersededError(
            f"another driver resumes job '{layout.job_id}' at the same time (epoch {newest.entry.epoch} of '{layout.log}'); "
            "this one stops without changing anything"
        )


@contextmanager
def _unknown_if_it_fails(path: str) -> Iterator[None]:
    """Raise OutcomeUnknown: the entry exists, perhaps of this driver, so what it may complete must stay."""
    try:
        yield
    except StorageError as error:
        raise OutcomeUnknown(f"cannot tell whether '{path}' is valid: {error.text}") from error
