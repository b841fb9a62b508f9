"""State as DataFrames: read from any snapshot, written into a new savepoint."""

from pathlib import Path

import pytest
from spark_kit import wait_until
from test_checkpoints import KEYS, Number, checkpointed, completed, written
from typer.testing import CliRunner

from headrace import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from headrace.api.checkpoint_config import ExternalizedCheckpointRetention
from headrace.cli.main import app
from headrace.connectors.files import FileSink
from headrace.errors import InvalidArgument
from headrace.job_client import SavepointFormat
from headrace.savepoints.reader import StateSnapshotReader
from headrace.savepoints.writer import SavepointWriter

pytestmark = pytest.mark.xdist_group("state frames")  # one job of each backend

COUNT = 6000


def build(env, directory, count=COUNT, rate=None):
    source = env.from_datagen(lambda n: (n % KEYS, n), count=count, rate=rate, type_info="k bigint, v bigint")
    numbered = (
        source.uid("source").key_by("k").process(Number(), output_type="k bigint, v bigint, n bigint").uid("number")
    )
    numbered.rebalance().sink_to(FileSink(f"{directory}/out", "json")).uid("sink")


@pytest.fixture(scope="module")
def snapshots(spark, tmp_path_factory):
    """A checkpoint and two savepoints of one job on each backend."""
    from headrace import Configuration, StreamExecutionEnvironment

    found = {}
    for backend in ("hashmap", "rocksdb"):
        directory = tmp_path_factory.mktemp(backend)
        options = {"state.backend.type": backend, "execution.checkpointing.incremental": "true"}
        env = StreamExecutionEnvironment.get_execution_environment(Configuration(options), spark).set_parallelism(2)
        checkpointed(env, directory)
        retention = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
        env.get_checkpoint_config().set_externalized_checkpoint_retention(retention)
        build(env, directory, 100_000, rate=3000)
        client = env.execute_async(f"snapshots {backend}")
        assert client.job.wait_running(120)
        wait_until(lambda client=client: completed(client.job) > 1, "a checkpoint")
        for format in SavepointFormat:
            found[backend, format.value.lower()] = client.trigger_savepoint(f"file://{directory}/savepoints", format)
        client.cancel()
        (chk,) = Path(directory, "checkpoints").glob("*/chk-*")
        found[backend, "checkpoint"] = str(chk)
    return found


# A native savepoint is read as a checkpoint is, and a canonical one is the same whichever backend wrote it.
KINDS = [("hashmap", "checkpoint"), ("hashmap", "canonical"), ("rocksdb", "checkpoint"), ("rocksdb", "native")]


@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_spark_reads_the_state_of_any_snapshot(spark, snapshots, backend, kind):
    path = snapshots[backend, kind]
    listed = spark.read.format("headrace-state").load(path)
    assert {(row["uid"], row["state"]) for row in listed.collect()} >= {("number", "count"), ("source", "splits")}
    frame = spark.read.format("headrace-state").option("operator", "number").option("state", "count").load(path)
    rows = {row["key"]: (row["key_group"], row["value"]) for row in frame.collect()}
    assert set(rows) == set(range(KEYS))
    assert all(count > 0 for _, count in rows.values())
    splits = spark.read.format("headrace-state").option("operator", "source").option("state", "splits").load(path)
    assert splits.count() > 0


# What is left out is decided by the reader of tables, or by the one of native snapshots.
@pytest.mark.parametrize(("backend", "kind"), [("hashmap", "canonical"), ("rocksdb", "checkpoint")])
def test_only_some_keys_are_read(spark, snapshots, backend, kind):
    path = snapshots[backend, kind]
    one = spark.read.format("headrace-state").option("operator", "number").option("state", "count")
    frame = one.load(path)
    rows = {row["key"]: (row["key_group"], row["value"]) for row in frame.collect()}
    group, count = rows[3]
    assert [r["value"] for r in frame.where(f"key_group = {group}").where("key = 3").collect()] == [count]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    pushed = one.option("pushFilters", "true").load(path).where("key = 3")
    assert [row["value"] for row in pushed.collect()] == [count]
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    one = spark.read.format("headrace-state").option("operator", "number").option("state", "count")
    assert {row["key_group"] for row in one.option("keyGroups", f"{group}-{group}").load(path).collect()} == {group}
    one = spark.read.format("headrace-state").option("operator", "number").option("state", "count")
    assert {row["key_group"] for row in one.option("key", "3").load(path).collect()} == {group}


def test_key_groups_are_pruned(snapshots):
    snapshot = StateSnapshotReader.open(snapshots["hashmap", "canonical"])
    from headrace.records.key_groups import KeyGroupRange

    assert len(snapshot.parts("number", "count")) == 2
    assert len(snapshot.parts("number", "count", KeyGroupRange(0, 10))) == 1


def test_what_is_not_there(snapshots):
    snapshot = StateSnapshotReader.open(snapshots["hashmap", "native"])
    with pytest.raises(InvalidArgument, match=r"has no operator 'nobody'; it has state of .*'number'"):
        snapshot.state("nobody", "count")
    with pytest.raises(InvalidArgument, match=r"operator 'number' has no state 'total'; it has 'count' \(value\)"):
        snapshot.state("number", "total")


@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_inspect(snapshots, backend, kind):
    done = CliRunner().invoke(app, ["inspect", "--files", "--verify", snapshots[backend, kind]])
    assert done.exit_code == 0, done.output
    assert "number" in done.output
    assert "every file matches its checksum" in done.output
    assert "skew" in done.output


def test_diff(snapshots):
    same = CliRunner().invoke(app, ["diff", snapshots["hashmap", "native"], snapshots["hashmap", "native"]])
    assert same.exit_code == 0, same.output
    other = CliRunner().invoke(app, ["diff", snapshots["hashmap", "canonical"], snapshots["rocksdb", "checkpoint"]])
    assert other.exit_code == 1
    assert "prepared-file-1" in other.output, other.output
    assert "\\x80" not in other.output


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_job_starts_with_state_from_a_dataframe(spark, make_env, workers, tmp_path, backend):
    frame = spark.createDataFrame([(key, 100 * key) for key in range(KEYS)], "k bigint, n bigint")
    writer = SavepointWriter.new(parts=3)
    writer.with_keyed_state("number", ValueStateDescriptor("count", "bigint"), frame, key="k", value="n")
    path = writer.write(f"file://{tmp_path}/made")
    options = {"state.backend.type": backend, "execution.state-recovery.path": path}
    env = checkpointed(make_env(2, options), tmp_path)
    build(env, tmp_path)
    env.execute_async("bootstrapped").wait(120)
    rows = written(tmp_path)
    for key in range(KEYS):
        numbers = sorted(row["n"] for row in rows if row["k"] == key)
        assert numbers == list(range(100 * key + 1, 100 * key + 1 + COUNT // KEYS))


def test_lists_maps_and_tuple_keys_round_trip(spark, tmp_path):
    lists = spark.createDataFrame(
        [("a", 1, 2, 20), ("a", 1, 1, 10), ("b", 2, 1, 5)], "w string, n bigint, p int, v bigint"
    )
    maps = spark.createDataFrame([("a", 1, "x", 1.5), ("b", 2, "y", 2.5)], "w string, n bigint, m string, v double")
    pairs = spark.createDataFrame([("a", 1, "Basel", 7)], "w string, n bigint, city string, pop bigint")
    writer = SavepointWriter.new(max_parallelism=16, parts=2)
    key = ["w", "n"]
    writer.with_keyed_state("op", ListStateDescriptor("list", "bigint"), lists, key=key, value="v", position="p")
    writer.with_keyed_state("op", MapStateDescriptor("map", "string", "double"), maps, key=key, value="v", map_key="m")
    row = ValueStateDescriptor("row", "city string, pop bigint")
    writer.with_keyed_state("op", row, pairs, key=key, value=["city", "pop"])
    path = writer.write(f"file://{tmp_path}")
    read = spark.read.format("headrace-state").option("operator", "op")
    found = {(r["key"]["f0"], r["pos"]): r["value"] for r in read.option("state", "list").load(path).collect()}
    assert found == {("a", 0): 10, ("a", 1): 20, ("b", 0): 5}
    found = {(r["key"]["f1"], r["map_key"]): r["value"] for r in read.option("state", "map").load(path).collect()}
    assert found == {(1, "x"): 1.5, (2, "y"): 2.5}
    (one,) = read.option("state", "row").load(path).collect()
    assert one["value"].asDict() == {"city": "Basel", "pop": 7}


def test_a_savepoint_is_repaired(spark, make_env, workers, snapshots, tmp_path):
    path = snapshots["hashmap", "canonical"]
    state = spark.read.format("headrace-state").option("operator", "number").option("state", "count").load(path)
    repaired = state.selectExpr("key", "value + 1000000 as value")
    writer = SavepointWriter.from_existing(path)
    writer.with_keyed_state("number", ValueStateDescriptor("count", "bigint"), repaired, key="key", value="value")
    made = writer.write(f"file://{tmp_path}/repaired")
    again = spark.read.format("headrace-state").option("operator", "number").option("state", "count").load(made)
    before = {row["key"]: row["value"] for row in state.collect()}
    assert {row["key"]: row["value"] for row in again.collect()} == {k: v + 1_000_000 for k, v in before.items()}
    done = CliRunner().invoke(app, ["diff", path, made])
    assert f"{KEYS}" in done.output
    splits = StateSnapshotReader.open(made).state("source", "splits")
    assert splits.kind == "split list"


def test_no_savepoint_no_repair(snapshots):
    from headrace.errors import IllegalState

    with pytest.raises(IllegalState, match="is not a canonical savepoint"):
        SavepointWriter.from_existing(snapshots["hashmap", "native"])


def test_an_operator_is_left_out(snapshots, tmp_path):
    path = snapshots["hashmap", "canonical"]
    before = {operator.uid for operator in StateSnapshotReader.open(path).manifest.operators}
    made = SavepointWriter.from_existing(path).without_operator("number").write(f"file://{tmp_path}/smaller")
    reader = StateSnapshotReader.open(made)
    assert {operator.uid for operator in reader.manifest.operators} == before - {"number"}
    reader.verify()
