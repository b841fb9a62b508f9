"""The environment, its settings and its plans as PyFlink has them."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from datetime import timedelta

import pytest

from headrace import config
from headrace.config import read_map, write_map
from headrace.errors import GraphError, InvalidArgument
from headrace.graph.plan import ShippedArchive
from headrace.local import LocalRun
from headrace.pyflink.common import ConfigOptions, Configuration, Duration, ExecutionConfig, RestartStrategies, Types
from headrace.pyflink.datastream import (
    CustomCheckpointStorage,
    CustomStateBackend,
    EmbeddedRocksDBStateBackend,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
    MapFunction,
    MemorySize,
    PredefinedOptions,
    SlotSharingGroup,
    StreamExecutionEnvironment,
)
from headrace.pyflink.datastream.state import AggregatingStateDescriptor, ReducingStateDescriptor, StateTtlConfig
from headrace.pyflink.datastream.window import (
    CountTumblingWindowAssigner,
    CountWindow,
    CountWindowSerializer,
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
    Window,
)


@pytest.fixture
def env():
    return StreamExecutionEnvironment.local()


# --- configuration ------------------------------------------------------------------------------------------------------


def test_a_configuration_returns_what_was_set():
    conf = Configuration()
    conf.set_string("k", "v").set_integer("n", 1).set_boolean("b", True).set_float("f", 0.5)
    conf.set_bytearray("y", bytearray(b"ab"))
    conf.set_string("execution.checkpointing.timeout", "12000")
    assert conf.get_string("execution.checkpointing.timeout", "") == "12000"
    assert (conf.get_integer("n", 0), conf.get_boolean("b", False), conf.get_float("f", 0.0)) == (1, True, 0.5)
    assert conf.get_bytearray("y", bytearray()) == bytearray(b"ab")
    assert conf.get_bytearray("k", bytearray()) == bytearray(b"v")
    target = {}
    conf.add_all_to_dict(target)
    assert (target["n"], target["b"]) == (1, True)
    assert conf.to_dict()["b"] == "true"
    assert conf.remove_config("n")
    assert not conf.remove_config("n")
    assert copy.deepcopy(conf) == conf
    assert hash(copy.deepcopy(conf)) == hash(conf)
    other = Configuration().add_all(conf, "x.")
    assert other.get_string("x.k", "") == "v"
    assert str(Configuration.from_dict({"b": "2", "a": "1"})) == "{a=1, b=2}"


@pytest.mark.parametrize(
    ("text", "found"),
    [(None, []), ("[a, b]", ["a", "b"]), ("- a\n- b", ["a", "b"]), ("a;b", ["a", "b"])],
)
def test_lists_of_a_configuration(text, found):
    assert Configuration.parse_list_value(text) == found


def test_options_of_a_program():
    retries = ConfigOptions.key("user.retries").int_type().default_value(3)
    assert Configuration().set("user.retries", 5).get(retries) == "5"
    assert (retries.key, retries.default) == ("user.retries", 3)
    builder = ConfigOptions.key("user.x")
    made = [
        builder.boolean_type(),
        builder.long_type(),
        builder.float_type(),
        builder.double_type(),
        builder.string_type(),
    ]
    assert [one.no_default_value().default for one in made] == [None] * 5


@pytest.mark.parametrize("pairs", [{}, {"a": "1"}, {"a": "1", "b": "x,y", "c": "http://h:1"}])
def test_maps_in_options(pairs):
    assert read_map(write_map(pairs)) == pairs


def test_the_execution_config(env):
    conf = env.get_config()
    assert isinstance(conf, ExecutionConfig)
    conf.set_parallelism(3).set_max_parallelism(12).set_auto_watermark_interval(50).enable_object_reuse()
    assert (env.get_parallelism(), env.get_max_parallelism()) == (3, 12)
    assert env.get_configuration().get(config.AUTO_WATERMARK_INTERVAL) == conf.get_auto_watermark_interval() == 50
    assert env.get_configuration().get(config.OBJECT_REUSE)
    conf.set_global_job_parameters({"city": "Basel", "n": 1})
    assert conf.get_global_job_parameters() == {"city": "Basel", "n": "1"}
    assert conf.set_global_job_parameters({}).get_global_job_parameters() == {}
    assert conf.set_parallelism(ExecutionConfig.PARALLELISM_DEFAULT).get_parallelism() == 1
    for enable, disable, ask in [
        ("enable_closure_cleaner", "disable_closure_cleaner", "is_closure_cleaner_enabled"),
        ("enable_force_kryo", "disable_force_kryo", "is_force_kryo_enabled"),
        ("enable_force_avro", "disable_force_avro", "is_force_avro_enabled"),
        ("disable_generic_types", "enable_generic_types", "has_generic_types_disabled"),
        ("enable_auto_generated_uids", "disable_auto_generated_uids", "has_auto_generated_uids_enabled"),
    ]:
        assert getattr(getattr(conf, enable)(), ask)()
        assert not getattr(getattr(conf, disable)(), ask)()
    conf.set_latency_tracking_interval(5).set_task_cancellation_interval(6).set_task_cancellation_timeout(7)
    assert conf.get_latency_tracking_interval() == 5
    assert (conf.get_task_cancellation_interval(), conf.get_task_cancellation_timeout()) == (6, 7)
    assert conf.set_use_snapshot_compression(True).is_use_snapshot_compression()
    assert (conf.get_registered_kryo_types(), conf.get_registered_pojo_types()) == ([], [])
    assert conf == env.get_config()
    assert env.from_collection([1]).get_execution_config() == conf
    conf.enable_auto_generated_uids()
    assert list(env.from_collection([1]).execute_and_collect()) == [1]  # what has no effect does not stop a job


# --- functions ----------------------------------------------------------------------------------------------------------


def test_job_parameters_and_metrics_reach_functions(env):
    class Measured(MapFunction):
        def open(self, runtime_context):
            group = runtime_context.get_metrics_group().add_group("shop", "basel")
            self.seen = group.counter("seen")
            self.meter = group.meter("rate", 1)
            self.spread = group.distribution("size")
            group.gauge("double", lambda: self.seen.get_count() * 2)
            group.gauge("broken", lambda: 1 // 0)
            self.city = runtime_context.get_job_parameter("city", "?")
            self.other = runtime_context.get_job_parameter("other", "?")

        def map(self, value):
            self.seen.inc()
            self.meter.mark_event(2)
            self.spread.update(value)
            return self.city, self.other, self.seen.get_count(), self.meter.get_count()

    env.get_config().set_global_job_parameters({"city": "Basel"})
    ds = env.from_collection([3, 5]).map(Measured()).name("count")
    assert list(ds.execute_and_collect()) == [("Basel", "?", 1, 2), ("Basel", "?", 2, 4)]
    ds.print()
    run = LocalRun(env._job_plan(), lambda *_: None)
    run.run()
    sent = [task.metrics().user for task in run._subtasks.values()]
    assert {key: value for one in sent for key, value in one.items()} == {
        "count.shop.basel.seen": 2,
        "count.shop.basel.double": 4,
        "count.shop.basel.rate": 4.0,
        "count.shop.basel.rate.count": 4,
        "count.shop.basel.size.count": 2,
        "count.shop.basel.size.sum": 8,
        "count.shop.basel.size.min": 3,
        "count.shop.basel.size.max": 5,
        "count.shop.basel.size.mean": 4.0,
    }


def test_values_of_metrics():
    from headrace.api.metrics import MetricGroup

    clock, metrics = [0], {}
    group = MetricGroup("op", metrics, lambda: clock[0])
    meter, spread, counter = group.meter("m", 10), group.distribution("d"), group.counter("c")
    counter.inc(3)
    counter.dec()
    assert metrics["op.d"].values() == {".count": 0}
    for value in (1, 5):
        spread.update(value)
    meter.mark_event(20)
    clock[0] = 5000
    meter.mark_event(10)
    assert metrics["op.m"].values() == {"": 3.0, ".count": 30}
    clock[0] = 12_000
    assert metrics["op.m"].values() == {"": 1.0, ".count": 30}
    clock[0] = 60_000
    assert metrics["op.m"].values() == {"": 0.0, ".count": 30}
    assert metrics["op.d"].values() == {".count": 2, ".sum": 6, ".min": 1, ".max": 5, ".mean": 3.0}
    assert metrics["op.c"].values() == {"": 2}


# --- plans and hints ----------------------------------------------------------------------------------------------------


def test_the_plan_in_flinks_json(env):
    env.set_parallelism(2)
    ds = env.from_collection([(1, 2)], Types.TUPLE([Types.INT(), Types.INT()])).name("numbers")
    ds.key_by(lambda pair: pair[0]).sum(1).set_description("adds up").slot_sharing_group(
        SlotSharingGroup.builder("heavy").build()
    ).print()
    source, total, sink = json.loads(env.get_execution_plan())["nodes"]
    assert source == {
        "id": 1,
        "type": "Source: numbers",
        "pact": "Data Source",
        "contents": "Source: numbers",
        "parallelism": 1,
    }
    assert total["predecessors"] == [{"id": 1, "ship_strategy": "HASH", "side": "second"}]
    assert (total["pact"], total["contents"], total["slot_sharing_group"]) == ("Operator", "adds up", "heavy")
    assert (sink["pact"], sink["parallelism"], sink["predecessors"][0]["ship_strategy"]) == ("Data Sink", 2, "FORWARD")


def test_the_hash_of_a_uid_is_the_id_of_the_operator(env):
    env.from_collection([1]).map(str).set_uid_hash("AB" * 16).print()
    graph, _ = env._graph(None)
    assert "ab" * 16 in [operator.id for vertex in graph.vertices for operator in vertex.operators]


def test_slot_sharing_groups(env):
    group = SlotSharingGroup.builder("g").set_cpu_cores(1).set_task_heap_memory_mb(5).set_managed_memory_mb(1).build()
    assert env.register_slot_sharing_group(group) is env
    assert (group.get_managed_memory(), group.get_task_heap_memory().get_mebi_bytes()) == (MemorySize(1 << 20), 5)
    assert [
        MemorySize(1 << 41).get_tebi_bytes(),
        MemorySize(1 << 31).get_gibi_bytes(),
        MemorySize(2048).get_kibi_bytes(),
    ] == [2] * 3
    assert (str(MemorySize(1 << 31)), str(MemorySize(3)), MemorySize(3).get_bytes()) == ("2 gb", "3 bytes", 3)
    with pytest.raises(InvalidArgument, match="slot sharing group 'g': give both cpu cores and task heap memory"):
        SlotSharingGroup.builder("g").set_external_resource("gpu", 1).build()
    with pytest.raises(InvalidArgument, match="must not be negative"):
        MemorySize(-1)


# --- settings of the environment ----------------------------------------------------------------------------------------


def test_settings_that_are_options(env, caplog):
    env.set_default_savepoint_directory("/s")
    assert (env.get_default_savepoint_directory(), env.is_chaining_enabled()) == ("/s", True)
    assert env.is_changelog_state_backend_enabled() is None
    env.enable_changelog_state_backend(True)
    assert env.is_changelog_state_backend_enabled()
    assert list(env.from_collection([1]).execute_and_collect()) == [1]
    assert "'state.changelog.enabled' has no effect: execution.checkpointing.incremental makes" in caplog.text
    assert not env.is_chaining_of_operators_with_different_max_parallelism_enabled()
    env.set_default_local_parallelism(7)
    assert env.get_default_local_parallelism() == 7
    assert env.get_checkpointing_mode() is env.get_checkpointing_consistency_mode()
    assert (env.is_unaligned_checkpoints_enabled(), env.is_force_unaligned_checkpoints()) == (False, False)
    env.close()


def test_jars_are_accepted_with_a_warning(env, caplog):
    env.add_jars("file:///a.jar")
    env.add_jars("file:///b.jar", "file:///c.jar")
    env.add_classpaths("file:///d.jar")
    env.register_cached_file("/x", "x")
    assert env.get_configuration().get("pipeline.jars") == "['file:///a.jar', 'file:///b.jar', 'file:///c.jar']"
    list(env.from_collection([1]).execute_and_collect())
    assert "option 'pipeline.jars' has no effect: connectors need no jars" in caplog.text
    assert "functions find the files of env.add_python_archive(path)" in caplog.text


def test_the_interpreter(env):
    env.set_python_executable(sys.executable)
    with pytest.raises(InvalidArgument, match=r"set_python_executable\('/other'\): .*spark.pyspark.python"):
        env.set_python_executable("/other")


def test_archives_and_requirements_belong_to_an_environment(env, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "n.txt").write_text("2")
    archive = shutil.make_archive(str(tmp_path / "files"), "gztar", tmp_path / "data")
    env.add_python_archive(archive, "data")
    env.get_configuration().set(config.PYTHON_ARCHIVES, f"{archive}#more")
    (tmp_path / "requirements.txt").write_text("# none\n")
    env.set_python_requirements(str(tmp_path / "requirements.txt"))
    env.set_python_requirements(str(tmp_path / "requirements.txt"), str(tmp_path))
    env.from_collection([1]).print()
    archives = env._job_plan().archives
    assert [(one.directory, one.importable) for one in archives] == [
        ("data", False),
        ("python-requirements", True),
        ("more", False),
    ]
    assert env._job_plan().archives == archives  # options are shipped once
    assert all(isinstance(one, ShippedArchive) for one in archives)
    assert StreamExecutionEnvironment.local()._program.shipment.archives == []
    with pytest.raises(InvalidArgument, match=r"add_python_archive\('/no.zip'\): '/no.zip': there is no such file"):
        env.add_python_archive("/no.zip")
    with pytest.raises(InvalidArgument, match="it is no archive"):
        env.add_python_archive(str(tmp_path / "requirements.txt"))
    with pytest.raises(InvalidArgument, match=r"set_python_requirements.*there is no such file"):
        env.set_python_requirements("/no.txt")
    (tmp_path / "wrong.txt").write_text("no-such-package-of-ours==1\n")
    with pytest.raises(InvalidArgument, match="pip could not install the packages"):
        env.set_python_requirements(str(tmp_path / "wrong.txt"), str(tmp_path))


def test_a_task_works_in_a_directory_with_its_archives(tmp_path):
    from pathlib import Path

    from headrace.worker.shell import LevelTask

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "own_module_of_a_job.py").write_text("n = 5\n")
    archive = shutil.make_archive(str(tmp_path / "files"), "zip", tmp_path / "in")
    before = Path.cwd()
    task = LevelTask(b"", None, 1.0, unpack=(ShippedArchive(archive, "lib", importable=True),))
    with task._unpacked(str(tmp_path)):
        assert Path("lib/own_module_of_a_job.py").exists()
        import own_module_of_a_job

        assert own_module_of_a_job.n == 5
    assert Path.cwd() == before
    assert not any(str(tmp_path) in entry for entry in sys.path)


def test_checkpoint_storage(env):
    settings = env.get_checkpoint_config()
    assert settings.get_checkpoint_storage() is None
    settings.set_checkpoint_storage(FileSystemCheckpointStorage("file:///c/", 100, 5000))
    assert settings.get_checkpoint_storage().get_checkpoint_path() == "file:///c"
    assert env.get_configuration().get(config.CHECKPOINT_INLINE_THRESHOLD) == 100
    assert env.get_configuration().get(config.CHECKPOINT_WRITE_BUFFER) == 5000
    settings.set_checkpoint_storage(JobManagerCheckpointStorage())
    assert env.get_configuration().get(config.CHECKPOINT_STORAGE) == "jobmanager"
    assert FileSystemCheckpointStorage("/c").get_write_buffer_size() == 4096
    assert JobManagerCheckpointStorage(max_state_size=5).get_max_state_size() == 5
    with pytest.raises(InvalidArgument, match="written in Java"):
        CustomCheckpointStorage()
    with pytest.raises(InvalidArgument, match="must be from 0 to 1048576"):
        FileSystemCheckpointStorage("/c", 1 << 30)


def test_checkpoint_settings(env):
    settings = env.get_checkpoint_config()
    assert settings.is_fail_on_checkpointing_errors()
    assert not settings.set_fail_on_checkpointing_errors(
        fail_on_checkpointing_errors=False
    ).is_fail_on_checkpointing_errors()
    assert settings.set_alignment_timeout(Duration.of_minutes(1)).get_alignment_timeout() == timedelta(minutes=1)
    assert settings.set_force_unaligned_checkpoints(True).is_force_unaligned_checkpoints()
    assert not settings.is_externalized_checkpoints_enabled()


def test_the_rocksdb_backend(env, caplog, monkeypatch):
    monkeypatch.setattr("headrace.pyflink._without_effect._WARNED", set())
    backend = EmbeddedRocksDBStateBackend(True)
    assert (backend.is_incremental_checkpoints_enabled(), backend.get_number_of_transfer_threads()) == (True, 4)
    backend.set_db_storage_paths("file:///a/", "/b")
    backend.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED)
    backend.set_options("com.example.Factory")
    backend.set_number_of_transfer_threads(2)
    assert (backend.get_options(), backend.get_number_of_transfer_threads()) == ("com.example.Factory", 2)
    env.set_state_backend(backend)
    assert env.get_configuration().get(config.IO_TMP_DIRS) == "/a"
    assert "a worker uses one directory, /a" in caplog.text
    assert "set_options has no effect: RocksDB's options are fixed; state.backend.rocksdb.memory" in caplog.text
    with pytest.raises(InvalidArgument, match="written in Java"):
        CustomStateBackend()


def test_restart_strategies(env):
    fixed = RestartStrategies.fixed_delay_restart(3, 500)
    assert (fixed.get_restart_attempts(), fixed.get_delay_between_attempts_interval()) == (
        3,
        timedelta(milliseconds=500),
    )
    rate = RestartStrategies.failure_rate_restart(2, timedelta(minutes=1), 10)
    assert (rate.get_max_failure_rate(), rate.get_failure_interval()) == (2, timedelta(minutes=1))
    assert rate.get_delay_between_attempts_interval() == timedelta(milliseconds=10)
    env.set_restart_strategy(RestartStrategies.no_restart())
    assert env.get_configuration().get(config.RESTART_TYPE) == "none"
    assert RestartStrategies.fall_back_restart().options == {}


def test_cleanup_strategies():
    ttl = StateTtlConfig.new_builder(timedelta(hours=1)).cleanup_incrementally(10, True)
    strategies = ttl.cleanup_in_rocksdb_compact_filter(1000, Duration.of_hours(1)).build().get_cleanup_strategies()
    incremental = strategies.get_incremental_cleanup_strategy()
    assert (incremental.get_cleanup_size(), incremental.run_cleanup_for_every_record()) == (10, True)
    compact = strategies.get_rocksdb_compact_filter_cleanup_strategy()
    assert compact.get_query_time_after_num_entries() == 1000
    assert compact.get_periodic_compaction_time() == timedelta(hours=1)
    assert (strategies.is_cleanup_in_background(), strategies.in_full_snapshot()) == (True, False)
    assert isinstance(strategies, StateTtlConfig.CleanupStrategies)
    assert ttl.build().is_enabled()
    off = StateTtlConfig.new_builder(1).disable_cleanup_in_background().build().get_cleanup_strategies()
    assert off.get_rocksdb_compact_filter_cleanup_strategy() is off.get_incremental_cleanup_strategy() is None


def test_descriptors_give_their_functions():
    assert ReducingStateDescriptor("r", max).get_reduce_function() is max

    class Sum:
        create_accumulator = add = get_result = merge = lambda self, *args: 0

    given = Sum()
    assert AggregatingStateDescriptor("a", given).get_agg_function() is given


# --- windows ------------------------------------------------------------------------------------------------------------


def test_windows_by_count_that_are_not_full_do_not_fire(env):
    keyed = env.from_collection([1, 2, 3, 4, 5]).key_by(lambda n: 0)
    found = keyed.window(CountTumblingWindowAssigner.of(2)).apply(_Sum()).execute_and_collect()
    assert list(found) == [(CountWindow(0), 3), (CountWindow(1), 7)]


class _Sum:
    def apply(self, key, window, inputs):
        return [(window, sum(inputs))]


@pytest.mark.parametrize(
    ("serializer", "window"),
    [
        (TimeWindowSerializer(), TimeWindow(-1, 5)),
        (CountWindowSerializer(), CountWindow(7)),
        (GlobalWindowSerializer(), GlobalWindow.get()),
    ],
)
def test_windows_can_be_written(serializer, window):
    from io import BytesIO

    stream = BytesIO()
    serializer.serialize(window, stream)
    stream.seek(0)
    assert serializer.deserialize(stream) == window
    assert isinstance(window, Window)


# --- what is out of scope -----------------------------------------------------------------------------------------------


def test_what_is_out_of_scope_says_what_to_use(env):
    with pytest.raises(
        InvalidArgument, match=r"pyflink.table.StreamTableEnvironment: Headrace has no Table API; use Spark's"
    ):
        from headrace.pyflink.table import StreamTableEnvironment  # noqa: F401
    with pytest.raises(GraphError, match="streams are not cached"):
        env.from_collection([1]).cache()
    with pytest.raises(InvalidArgument, match=r"create_input.. needs a source of Headrace"):
        env.create_input(object())
