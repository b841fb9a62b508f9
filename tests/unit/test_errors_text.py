"""What a user reads when the program is wrong: one clear message that says what, where and what to do.

All of these need no JVM. The messages are part of the interface: a change here is a change users see.
"""

from __future__ import annotations

import threading

import pytest

from headrace import (
    Configuration,
    KeyedProcessFunction,
    KeySelector,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
    RestartStrategies,
    SinkFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    spark_conf,
)
from headrace.driver.session import get_session
from headrace.errors import ConfigError, GraphError, HeadraceError, InvalidArgument, UserCodeError

HERE = r".*test_errors_text\.py:\d+"


class Identity(MapFunction):
    def map(self, value):
        return value


class Passing(ProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Keyed(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Selector(KeySelector):
    def get_key(self, value):
        return value


class First(Partitioner):
    def partition(self, key, num_partitions):
        return 0


class Sink(SinkFunction):
    def invoke(self, value, context):
        pass


class Reduce(ReduceFunction):
    def reduce(self, value1, value2):
        return value1


class CoMap:
    def map1(self, value):
        return value

    map2 = map1


def env(parallelism=1):
    return StreamExecutionEnvironment.local().set_parallelism(parallelism)


def numbers(environment=None):
    return (environment or env()).from_collection([1, 2, 3])


def typed(environment=None):
    return (environment or env()).from_collection([("a", 1)], "word string, n bigint")


def records(stream):
    return list(stream.execute_and_collect())


def plan(stream):
    stream.print()
    stream._executor._job_plan()


def union_of_two_types():
    e = env()
    typed(e).union(numbers(e))


def connect_one_input_function():
    e = env()
    numbers(e).connect(numbers(e)).process(Passing())


def connect_int_and_long():
    e = env()
    e.from_collection([(1,)], "k int").key_by("k").connect(numbers(e).key_by(abs)).map(CoMap())


def closure_with_a_lock():
    lock = threading.Lock()
    records(numbers().map(lambda n: (lock, n)).name("M"))


def selector_with_a_lock():
    lock = threading.Lock()
    records(numbers().key_by(lambda n: (lock, n)).map(str))


CASES = [
    # --- keys and columns -------------------------------------------------------------------------------------------
    (
        lambda: typed().key_by("wrod"),
        GraphError,
        rf"key_by\(\) at {HERE}: unknown column 'wrod'; the stream has word, n",
    ),
    (lambda: typed().key_by(["word", "x"]), GraphError, r"unknown column 'x'"),
    (lambda: typed().key_by(7), GraphError, r"unknown column 7"),
    (lambda: typed().key_by("word").sum("m"), GraphError, r"sum\(\) at .*: unknown column 'm'; the stream has word, n"),
    (
        lambda: numbers().key_by("word"),
        GraphError,
        (
            rf"key_by\(\) at {HERE}: the stream is untyped, so it has no column 'word'; use a callable, a position, "
            "or give the operator before it an output_type"
        ),
    ),
    (
        lambda: typed().key_by([]),
        InvalidArgument,
        rf"key_by\(\) at {HERE} needs a field name, a list of them, a callable or a KeySelector, got \[\]",
    ),
    (lambda: typed().key_by(None), InvalidArgument, r"needs a field name, .* got None"),
    (
        lambda: numbers().key_by(Selector),
        InvalidArgument,
        r"key_by\(\) needs a callable or an object with get_key\(...\), got .*did you forget to make an instance: Selector\(\)\?",
    ),
    (
        lambda: typed().key_by("word").count(emit="never"),
        InvalidArgument,
        r"emit must be 'record' \(one result for each record\) or 'batch' \(one for each key and batch\), got 'never'",
    ),
    # --- functions --------------------------------------------------------------------------------------------------
    (
        lambda: numbers().map(Identity),
        InvalidArgument,
        r"map\(\) needs a callable or an object with map\(...\), got .*did you forget to make an instance: Identity\(\)\?",
    ),
    (lambda: numbers().process(Passing), InvalidArgument, r"did you forget to make an instance: Passing\(\)\?"),
    (lambda: numbers().key_by(str).process(Keyed), InvalidArgument, r"make an instance: Keyed\(\)\?"),
    (lambda: numbers().key_by(str).reduce(Reduce), InvalidArgument, r"make an instance: Reduce\(\)\?"),
    (lambda: numbers().add_sink(Sink), InvalidArgument, r"make an instance: Sink\(\)\?"),
    (lambda: numbers().partition_custom(First, str), InvalidArgument, r"make an instance: First\(\)\?"),
    (lambda: numbers().map(5), InvalidArgument, r"map\(\) needs a callable or an object with map\(...\), got int 5$"),
    (lambda: numbers().flat_map("x"), InvalidArgument, r"flat_map\(\) needs a callable .*, got str 'x'"),
    (lambda: numbers().filter(None), InvalidArgument, r"filter\(\) needs a callable .*, got NoneType None"),
    (
        connect_one_input_function,
        InvalidArgument,
        r"Co-Process needs an object with process_element1\(...\) and process_element2\(...\), got ",
    ),
    (
        lambda: env().add_source(Identity()),
        InvalidArgument,
        r"add_source\(\) needs an object with run\(ctx\) and cancel\(\)",
    ),
    # --- types ------------------------------------------------------------------------------------------------------
    (
        lambda: numbers().map_batches(lambda batch: batch),
        GraphError,
        (
            rf"map_batches\(\) at {HERE} needs a typed stream: give the operator before it an output_type, "
            r"for example output_type='word string, n bigint'"
        ),
    ),
    (
        lambda: numbers().map(str, "strin"),
        InvalidArgument,
        r"type 'strin': unknown type 'strin' \(known: .*\); write it as Spark DDL",
    ),
    (lambda: numbers().map(str, str), InvalidArgument, r"<class 'str'> is not a type: give Spark DDL"),
    (
        union_of_two_types,
        GraphError,
        rf"union\(\) at {HERE} of streams with different types: row<word string, n bigint> and pickled",
    ),
    (
        lambda: env().from_collection([1, "x"], Types.LONG()),
        InvalidArgument,
        r"expected bigint, got 'x': 'x' is not bigint",
    ),
    # --- the graph --------------------------------------------------------------------------------------------------
    (
        lambda: plan(numbers().uid("a").map(str).uid("a").name("second")),
        GraphError,
        rf"uid 'a' is used twice: by 'Collection Source' \({HERE}\) and by 'second' \({HERE}\); every uid must be unique",
    ),
    (lambda: numbers().uid(""), InvalidArgument, r"a uid must not be empty"),
    (
        lambda: numbers().uid("ab\udcff"),
        InvalidArgument,
        r"^\[HR-1226\] uid 'ab\\udcff' cannot be stored: its character 3 is a lone surrogate, .* wrong encoding; use other characters$",
    ),
    (
        lambda: numbers().name("\udcff"),
        InvalidArgument,
        r"^\[HR-1226\] the name '\\udcff' cannot be stored: its character 1 is a lone surrogate",
    ),
    (
        lambda: ValueStateDescriptor("\udcff", "bigint"),
        InvalidArgument,
        r"^\[HR-1226\] the state name '\\udcff' cannot be stored: its character 1 is a lone surrogate",
    ),
    (
        lambda: ValueStateDescriptor("a\0b", "bigint"),
        InvalidArgument,
        r"^\[HR-1226\] the state name 'a\\x00b' cannot be stored: its character 2 is NUL; use other characters$",
    ),
    (
        lambda: plan(env(4).from_sequence(1, 2).name("numbers").set_max_parallelism(2)),
        GraphError,
        r"'numbers'.*(parallelism 4|max parallelism 2)",
    ),
    (lambda: env(0), InvalidArgument, r"parallelism must be an integer of at least 1, got 0"),
    (
        lambda: numbers().set_parallelism(True),
        InvalidArgument,
        r"parallelism must be an integer of at least 1, got True",
    ),
    (
        lambda: numbers().set_max_parallelism(-1),
        InvalidArgument,
        r"max parallelism must be an integer of at least 1, got -1",
    ),
    (
        lambda: env().set_buffer_timeout(-2),
        InvalidArgument,
        r"buffer timeout must be -1, 0 or positive milliseconds, got -2",
    ),
    (
        lambda: plan(env().from_sequence(1, 2).set_parallelism(2).forward().map(str).set_parallelism(3)),
        GraphError,
        (
            r"forward\(\) from .* with parallelism 2 to .* with parallelism 3: forward needs the same parallelism on both "
            r"sides; use rebalance\(\) or rescale\(\)"
        ),
    ),
    (
        lambda: numbers().name("S").get_side_output(OutputTag("late")),
        GraphError,
        rf"get_side_output\('late'\): 'S' \({HERE}\) has no such side output; a source has one if it was given the tag",
    ),
    (
        lambda: numbers().key_by(str).rebalance(),
        GraphError,
        rf"rebalance\(\) at {HERE}: the records of a keyed stream go where their keys belong; call it on the stream before",
    ),
    (
        lambda: numbers().cache(),
        GraphError,
        rf"cache\(\) at {HERE}: streams are not cached; write the stream with sink_to",
    ),
    (lambda: numbers().project(0), GraphError, rf"project\(\) at {HERE} needs a stream of tuples, not "),
    (
        lambda: numbers().map(str).set_uid_hash("abc"),
        InvalidArgument,
        r"set_uid_hash\(\) needs the id of an operator, 32 hex digits, got 'abc'",
    ),
    (
        lambda: numbers().rebalance().get_side_output(OutputTag("late")),
        GraphError,
        rf"get_side_output\(\) at {HERE} must directly follow an operator; this stream is a union or a partitioning of others",
    ),
    (lambda: numbers().key_by(str).name("x"), GraphError, rf"name\(\) at {HERE} must directly follow an operator"),
    (lambda: OutputTag(""), InvalidArgument, r"an OutputTag needs a name that is not empty"),
    (
        lambda: env().execute(),
        GraphError,
        r"the program is empty: add a source and at least one operator before execute\(\)",
    ),
    (
        lambda: numbers().union(numbers()),
        GraphError,
        rf"union\(\) at {HERE} of streams of two environments: build one program with one environment",
    ),
    (
        lambda: numbers().connect(numbers()).map(CoMap()),
        GraphError,
        rf"connect\(\) at {HERE} of streams of two environments: build one program with one environment",
    ),
    (
        connect_int_and_long,
        GraphError,
        (
            rf"connect\(\) at {HERE}: one key is the int column 'k', the other is not: negative keys would not meet; "
            r"make it a bigint column, or use a callable on both sides"
        ),
    ),
    # --- what cannot be sent ----------------------------------------------------------------------------------------
    (
        closure_with_a_lock,
        GraphError,
        rf"the function of operator 'M', defined at {HERE}, cannot be sent to the workers: .*lock.*make that in open\(\) instead",
    ),
    (
        selector_with_a_lock,
        GraphError,
        r"the key selector or partitioner of operator 'Collection Source', .* cannot be sent to the workers",
    ),
    # --- state ------------------------------------------------------------------------------------------------------
    (
        lambda: ValueStateDescriptor(""),
        InvalidArgument,
        r"ValueStateDescriptor needs a name: a str that is not empty, got ''",
    ),
    # --- configuration ----------------------------------------------------------------------------------------------
    (
        lambda: Configuration({"parallelism.defualt": 4}).check(),
        ConfigError,
        r"parallelism.defualt.*parallelism.default",
    ),
    (
        lambda: env().set_restart_strategy(RestartStrategies.fixed_delay_restart(-1, 0)),
        HeadraceError,
        r"restart-strategy.fixed-delay.attempts': -1 is not a whole number of at least 0",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[text[:40] for *_, text in CASES])
def test_while_the_program_is_built(call, error, text):
    with pytest.raises(error, match=text) as caught:
        call()
    assert isinstance(caught.value, HeadraceError)


# --- while it runs --------------------------------------------------------------------------------------------------


class WantsState(ProcessFunction):
    def __init__(self, get):
        self.get = get

    def open(self, runtime_context):
        self.get(runtime_context)

    def process_element(self, value, ctx):
        yield value


class WantsTimer(ProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(1)
        yield value


class WantsKey(ProcessFunction):
    def process_element(self, value, ctx):
        yield ctx.get_current_key()


class NoneKey(KeySelector):
    def get_key(self, value):
        return None


RUNNING = [
    (
        lambda: numbers().process(WantsState(lambda c: c.get_state(ValueStateDescriptor("count")))).name("P"),
        r"keyed state 'count' \(ValueState\) can only be used on a keyed stream: call key_by\(...\) before 'P'",
    ),
    (
        lambda: numbers().process(WantsState(lambda c: c.get_list_state(ListStateDescriptor("l")))),
        r"keyed state 'l' \(ListState\) can only be used on a keyed stream",
    ),
    (
        lambda: numbers().process(WantsState(lambda c: c.get_map_state(MapStateDescriptor("m")))),
        r"keyed state 'm' \(MapState\) can only be used on a keyed stream",
    ),
    (
        lambda: numbers().process(WantsTimer()).name("P"),
        r"register_processing_time_timer: timers and keys need a keyed stream: call key_by\(...\) before 'P'",
    ),
    (
        lambda: numbers().process(WantsKey()).name("P"),
        r"get_current_key: timers and keys need a keyed stream: call key_by\(...\) before 'P'",
    ),
    (
        lambda: numbers(env(2)).partition_custom(lambda key, n: 5, str).map(str),
        r"partition_custom\(\) chose subtask 5 for key '1': it must be an integer from 0 to 1",
    ),
    (lambda: numbers().key_by(NoneKey(), "int").map(str), r"key is None, which is not int"),
    (lambda: numbers(env(2)).key_by(NoneKey(), "int").map(str), r"key is None, which is not int"),
    (lambda: numbers().key_by(lambda n: 1j).map(str), r"key of type builtins.complex cannot be hashed"),
    (
        lambda: numbers().map(str, "bigint").rebalance().map(str),
        r"the function returned a wrong type: expected bigint, got '1'",
    ),
    (
        lambda: numbers().flat_map(lambda n: n),
        r"flat_map must yield records or return a list of them, got int",
    ),
    (lambda: numbers().map(lambda n: n // 0), r"test_errors_text.py:\d+: ZeroDivisionError: "),
]


@pytest.mark.parametrize(("build", "text"), RUNNING, ids=[text[:40] for _, text in RUNNING])
def test_while_the_program_runs(build, text):
    """Every one leads with the user's file and names the operator."""
    with pytest.raises(UserCodeError, match=text) as caught:
        records(build())
    assert "test_errors_text.py:" in str(caught.value).split("\n")[0]
    assert "in operator '" in str(caught.value)


# --- the Spark session, without one ---------------------------------------------------------------------------------


class Connected:
    """Looks like a Spark Connect session."""

    __module__ = "pyspark.sql.connect.session"


class Context:
    def __init__(self, conf):
        self._conf = conf

    def getConf(self):  # noqa: N802 - Spark's name
        return self._conf


class Classic:
    """Looks like a classic session."""

    def __init__(self, version, conf):
        self.version, self.sparkContext = version, Context(conf)


def test_a_spark_connect_session():
    with pytest.raises(ConfigError, match=r"this is a Spark Connect session: .* set spark.api.mode=classic"):
        get_session(Connected(), Configuration())


def test_another_version_of_spark():
    with pytest.raises(ConfigError, match=r"Headrace runs on Spark 4\.3, but Spark is 3\.5\.1: .* pyspark==4\.3"):
        get_session(Classic("3.5.1", {}), Configuration())


def test_a_session_that_lacks_settings_is_told_all_of_them():
    """One error for all, with the line that mends it."""
    with pytest.raises(ConfigError) as caught:
        get_session(Classic("4.3.0", {"spark.speculation": "true"}), Configuration())
    lines = str(caught.value).splitlines()
    assert lines[0] == "[HR-1103] the SparkSession lacks settings that must be there when the application starts:"
    assert "  spark.python.udf.pipelined.enabled = true   (now unset)" in lines
    assert "  spark.speculation = false   (now true)" in lines
    assert "  spark.task.maxFailures = 1   (now unset)" in lines
    assert lines[-1].startswith("add them to the builder: for k, v in headrace.spark_conf().items()")


def test_a_session_whose_tasks_are_started_again():
    conf = spark_conf() | {"spark.task.maxFailures": "4"}
    with pytest.raises(
        ConfigError, match=r"starts:\n  spark\.task\.maxFailures = 1   \(now 4\)\nadd them to the builder"
    ):
        get_session(Classic("4.3.0", conf), Configuration())


def test_a_session_with_all_settings_is_taken():
    session = Classic("4.3.0", spark_conf())
    assert get_session(session, Configuration()) is session


def test_spark_remote_in_the_environment(monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(ConfigError, match=r"SPARK_REMOTE is set, .* unset SPARK_REMOTE"):
        get_session(None, Configuration())
