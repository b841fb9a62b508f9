"""What a driver refuses or adopts when it starts a job from state: through the service that every job starts with."""

from random import Random

import pytest
from msgspec.structs import replace

from headrace import StreamExecutionEnvironment
from headrace.checkpoint.types import SnapshotType
from headrace.config import Configuration
from headrace.driver.checkpoint_service import CheckpointService
from headrace.driver.restore_plan import restore_plan
from headrace.driver.services import JobPort
from headrace.errors import IllegalState
from headrace.ids import JobId
from headrace.records.key_groups import key_group_range
from headrace.storage.byte_handles import InlineBytes
from headrace.storage.layout import AttemptId, JobLayout
from headrace.storage.local import LocalStore
from headrace.storage.log import JobLog
from headrace.storage.manifest import Manifest, OperatorManifest, PieceKind, SnapshotPart, StatePiece, SubtaskManifest
from headrace.storage.published_snapshots import publish
from headrace.testing.simulation.cluster import SimulatedIo
from headrace.testing.storage_faults import MemoryStore

JOB = JobId("a" * 32)
LAYOUT = JobLayout.of("/data", JOB)
DIRECTORY = {"execution.checkpointing.dir": "/data"}


def environment(parallelism=1, options=None):
    return StreamExecutionEnvironment.get_execution_environment(Configuration(options or {})).set_parallelism(
        parallelism
    )


def program(parallelism=1, max_parallelism=None, source="source"):
    """Source, keyed map, print: each in a vertex of its own."""
    env = environment(parallelism)
    if max_parallelism is not None:
        env.set_max_parallelism(max_parallelism)
    keyed = env.from_sequence(1, 9).uid(source).key_by(lambda n: n).map(lambda n: n).uid("keyed").name("keyed")
    keyed.rebalance().print().uid("print").name("print")
    return env


def service(env, store, **options):
    """The checkpoints of a job, as a driver begins with them."""
    io = SimulatedIo(lambda: 1000, store, Random(1), lambda: None)
    settings = Configuration(DIRECTORY | {key.replace("__", ".").replace("_", "-"): v for key, v in options.items()})

    def unused(*_):
        raise AssertionError("nothing runs yet")

    port = JobPort(unused, unused, unused, unused)
    return CheckpointService(env._job_plan("job"), JOB, settings, port, io)


def snapshot_of(env, store, directory=None, finished=(), keyed_state=True, type=SnapshotType.CHECKPOINT, number=1):
    """A snapshot of the program, in which the operators named in `finished` had finished."""
    operators = []
    for vertex in env._job_plan("job").graph.vertices:
        groups = [key_group_range(i, vertex.max_parallelism, vertex.parallelism) for i in range(vertex.parallelism)]
        pieces = [
            StatePiece(PieceKind.KEYED, (SnapshotPart("base", InlineBytes(b"state")),), b"", one) for one in groups
        ]
        for operator in vertex.operators:
            left = keyed_state and operator.uid == "keyed"
            subtasks = tuple(
                SubtaskManifest(i, (pieces[i],) if left else (), finished=operator.uid in finished)
                for i in range(vertex.parallelism)
            )
            operators.append(
                OperatorManifest(
                    operator.id, operator.name, vertex.parallelism, vertex.max_parallelism, subtasks, operator.uid
                )
            )
    manifest = Manifest(number, type, JOB, "job", AttemptId(1), 1000, tuple(operators))
    return publish(store, manifest, directory or LAYOUT.checkpoint(1))


def completed(env, store):
    """A job whose driver is gone, with one complete checkpoint."""
    JobLog.start(store, LAYOUT, "job", clock=lambda: 1).complete(snapshot_of(env, store))


def key_groups(plan):
    return {vertex.name: vertex.max_parallelism for vertex in plan.graph.vertices}["keyed"]


# --- SPEC R3.3: the max parallelism of the state ----------------------------------------------------------------------


def test_a_resumed_job_adopts_the_stored_max_parallelism():  # SPEC R3.3
    store = MemoryStore()
    completed(program(2), store)
    assert key_groups(program(100)._job_plan()) == 256
    resumed = service(program(100), store, headrace__resume="true")
    assert key_groups(resumed.plan) == 128
    restore = resumed.start_attempt(0, resumed.choose())
    assert {one.max_parallelism for one in restore.values()} >= {128}


def test_a_resumed_job_has_no_more_subtasks_than_key_groups():  # SPEC R3.3
    store = MemoryStore()
    completed(program(2), store)
    with pytest.raises(IllegalState, match=r"stored with max parallelism 128, which is lower than the parallelism 129"):
        service(program(129), store, headrace__resume="true")


def test_a_max_parallelism_that_the_program_sets_is_not_replaced():  # SPEC R3.3
    store = MemoryStore()
    completed(program(2), store)
    resumed = service(program(2, max_parallelism=64), store, headrace__resume="true")
    with pytest.raises(IllegalState, match=r"'keyed': max parallelism mismatch: the state was stored with 128"):
        resumed.start_attempt(0, resumed.choose())


@pytest.mark.parametrize(("max_parallelism", "code"), [(None, 0), (64, 1)])
def test_a_job_that_starts_from_a_snapshot_adopts_it_too(tmp_path, capsys, max_parallelism, code):  # SPEC R3.3
    directory = f"{tmp_path}/snapshot"
    snapshot_of(program(2), LocalStore(), directory)
    env = program(100 if max_parallelism is None else 2, max_parallelism)
    env.get_configuration().set("execution.state-recovery.path", directory)
    env.get_configuration().set("headrace.dry-run", "true")
    with pytest.raises(SystemExit) as caught:
        env.execute("job")
    assert caught.value.code == code
    said = "the job would start" if code == 0 else "the state was stored with 128, the program sets 64"
    assert said in capsys.readouterr().out


# --- SPEC R4.5: vertices that had finished ----------------------------------------------------------------------------


def test_a_graph_whose_finished_vertices_come_first_is_restored():  # SPEC R4.5
    store = MemoryStore()
    snapshot_of(program(), store, "/data/other", finished={"source"})
    started = service(program(), store, execution__state_recovery__path="/data/other")
    restore = started.start_attempt(0, started.choose())
    assert [one.finished for _, one in sorted(restore.items())] == [True, False, False]


def test_a_finished_vertex_behind_a_new_source_is_refused():  # SPEC R4.5
    store = MemoryStore()
    snapshot_of(program(), store, "/data/other", finished={"source", "keyed"}, keyed_state=False)
    started = service(program(source="another"), store, execution__state_recovery__path="/data/other")
    with pytest.raises(
        IllegalState,
        match=r"vertex 'keyed' was fully finished in the checkpoint, but its predecessor 'Sequence Source' over an all-to-all "
        r"edge is running: .* give 'keyed' a new uid",
    ):
        started.start_attempt(0, started.choose())


# --- in-flight data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ignored", "kinds"), [(-1, ["KEYED", "CHANNEL"]), (1, ["KEYED"]), (2, ["KEYED", "CHANNEL"])])
def test_the_in_flight_data_of_one_checkpoint_can_be_ignored(ignored, kinds):  # SPEC R5.11
    env = program()
    env.get_configuration().set("execution.state-recovery.without-channel-state.checkpoint-id", ignored)
    manifest = snapshot_of(env, MemoryStore()).manifest
    in_flight = StatePiece(PieceKind.CHANNEL, (SnapshotPart("channels", InlineBytes(b"rows")),))
    operators = tuple(
        replace(op, subtasks=tuple(replace(s, pieces=(*s.pieces, in_flight)) for s in op.subtasks))
        if op.uid == "keyed"
        else op
        for op in manifest.operators
    )
    found = restore_plan(env._job_plan("job"), replace(manifest, operators=operators), claim=False)
    pieces = [one for vertex in found.values() for old in vertex.operators.values() for one in old[0]]
    assert [piece.kind.name for piece in pieces] == kinds


# --- a checkpoint, or the newer savepoint that the job stopped with -----------------------------------------------------


@pytest.mark.parametrize(("options", "restored"), [({}, 2), ({"headrace__resume__prefer_checkpoint": "true"}, 1)])
def test_a_resumed_job_can_prefer_its_checkpoint_to_a_newer_savepoint(options, restored):  # SPEC S6
    env, store = program(), MemoryStore()
    log = JobLog.start(store, LAYOUT, "job", clock=lambda: 1)
    log.complete(snapshot_of(env, store))
    log.complete(snapshot_of(env, store, "/data/savepoint", type=SnapshotType.SYNC_SAVEPOINT, number=2))
    resumed = service(env, store, headrace__resume="true", **options)
    assert {one.checkpoint_id for one in resumed.start_attempt(0, resumed.choose()).values()} == {restored}


def test_a_job_that_has_ended_without_a_checkpoint_cannot_be_resumed():  # SPEC S6
    store = MemoryStore()
    JobLog.start(store, LAYOUT, "job", clock=lambda: 1).end("FINISHED", [])
    with pytest.raises(IllegalState, match=r"is FINISHED and has retained no checkpoint; start it without --resume"):
        service(program(), store, headrace__resume="true")
