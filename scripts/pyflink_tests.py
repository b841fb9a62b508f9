"""Run PyFlink's own DataStream tests on Headrace, with the root of their imports changed.

    git clone --branch release-2.3.0 https://github.com/apache/flink
    python scripts/pyflink_tests.py flink                # on Spark
    python scripts/pyflink_tests.py flink --local        # in the local runtime, without a JVM
    python scripts/pyflink_tests.py flink -k test_window -k batch

Nothing of PyFlink is part of this repository: the test files are read from the checkout. What they use of PyFlink's
Java side (the test sink, the configuration of the Java environment, Java classes that they compare with) is replaced
by the stand-ins below, as small as can be: they look at Headrace's objects, and never change a result.

A test is counted once for process and thread mode, as PyFlink runs both; batch variants are counted apart.
"""

from __future__ import annotations

import argparse
import builtins
import datetime as dt
import decimal
import importlib
import io
import os
import pickle
import re
import shutil
import sys
import tempfile
import types
import unittest
import uuid
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyflink_java

from headrace import config
from headrace.api.watermarks import Watermark, WatermarkGenerator
from headrace.config import Configuration as CoreConfiguration
from headrace.config import set_process_defaults
from headrace.environment import use_local_runtime
from headrace.pyflink import common, datastream
from headrace.pyflink.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from headrace.pyflink.datastream.functions import MapFunction, SinkFunction

FILES = [
    *(f"common/tests/test_{n}.py" for n in ["configuration", "execution_config", "serialization_schemas", "typeinfo"]),
    "common/tests/test_watermark_strategy.py",
    *(
        f"datastream/tests/test_{n}.py"
        for n in [
            "async_function",
            "check_point_config",
            "checkpoint_storage",
            "data_stream",
            "slot_sharing_group",
            "state_backend",
        ]
    ),
    "datastream/tests/test_stream_execution_environment.py",
    "datastream/tests/test_window.py",
    *(
        f"datastream/connectors/tests/test_{n}.py"
        for n in [
            "cassandra",
            "dynamic_kafka",
            "elasticsearch",
            "file_system",
            "jdbc",
            "kafka",
            "kinesis",
            "pulsar",
            "rabbitmq",
            "seq_source",
        ]
    ),
    *(f"datastream/formats/tests/test_{n}.py" for n in ["avro", "csv", "json", "orc", "parquet"]),
]

# Tests of what only Flink has: they are not counted.
NOT_TESTABLE = {
    "test_from_java_type": "Java internals",
    "test_chaining_strategy": "Java internals",
    "test_logging_msg": "Java internals",
    "test_create_custom_state_backend": "Java internals",
    "test_add_custom_source": "Java internals",
    "test_execute": "Table API",
    "test_add_python_file": "Table API",
    "test_add_python_file_2": "Table API",
}


# --- stand-ins ----------------------------------------------------------------------------------------------------------


def java_text(value: Any) -> str:
    """What Java's toString gives for a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        single = np.float32(value)
        return str(single) if float(single) == value else repr(value)
    if isinstance(value, common.Row):
        return f"{value.get_row_kind()}[{', '.join(map(java_text, value))}]"
    if isinstance(value, tuple):
        return f"({','.join(map(java_text, value))})"
    if isinstance(value, list | bytes | bytearray):
        return f"[{', '.join(map(java_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{java_text(k)}={java_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, dt.datetime):
        fraction = f"{value.microsecond:06d}".rstrip("0") or "0"
        return f"{value:%Y-%m-%d %H:%M:%S}.{fraction}"
    if isinstance(value, dt.time):
        return f"{value:%H:%M:%S}"
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    return str(value)


class DataStreamTestSinkFunction(SinkFunction):
    """Keeps the records in files, which the test reads when the job has ended."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="sink-")

    def open(self, runtime_context: Any) -> None:
        self._file = Path(self._directory, uuid.uuid4().hex).open("ab")

    def invoke(self, value: Any, context: Any) -> None:
        cloudpickle.dump(value, self._file)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_directory": self._directory}

    def get_results(self, is_python_object: bool = False, stringify: bool = True) -> list[Any]:
        found = []
        for path in sorted(Path(self._directory).glob("*")):
            with path.open("rb") as file:
                while True:
                    try:
                        found.append(pickle.load(file))
                    except EOFError:
                        break
        self.clear()
        if not is_python_object:
            return list(map(java_text, found))
        return list(map(str, found)) if stringify else found

    def clear(self) -> None:
        for path in Path(self._directory).glob("*"):
            path.unlink()


class SecondColumnTimestampAssigner(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


class JavaConfiguration:
    """The configuration of an environment, with the methods of the Java class."""

    def __init__(self, configuration: CoreConfiguration) -> None:
        self.configuration = configuration

    def setString(self, key: str, value: str) -> None:
        self.configuration.set(key, value)

    def getString(self, key: Any, default: Any = None) -> Any:
        return self.configuration.to_dict().get(str(key), default)

    def removeKey(self, key: str) -> None:
        self.configuration.remove_config(key)

    def getValue(self, option: JavaName) -> str:
        return str(self.configuration.get(OPTION_KEYS[option.last]))


OPTION_KEYS = {"RUNTIME_MODE": "execution.runtime-mode", "JARS": "pipeline.jars", "CLASSPATHS": "pipeline.classpaths"}
CONSTANTS = {
    "ExecutionConfig.PARALLELISM_DEFAULT": -1,
    "ExecutionConfig.PARALLELISM_UNKNOWN": -2,
    "JobManagerCheckpointStorage.DEFAULT_MAX_STATE_SIZE": 5 * 1024 * 1024,
}


class JavaName:
    """A name of the JVM: `jvm.org.apache.flink...`."""

    def __init__(self, path: str = "") -> None:
        self.path = path

    @property
    def last(self) -> str:
        return self.path.rpartition(".")[2]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        constant = CONSTANTS.get(f"{self.last}.{name}")
        return JavaName(f"{self.path}.{name}") if constant is None else constant

    def __call__(self, *args: Any) -> Any:
        if self.last == "key":
            return OPTION_KEYS[self.path.split(".")[-2]]
        if self.last == "getEnvironmentConfig":
            return args[0].getConfiguration()
        if self.path.endswith("flink.types.Row"):
            return JavaRow(*[None] * args[0])
        if self.last == "DummyInitializationContext":
            return None
        if self.last == "PartitionCustomTestMapFunction":
            return PartitionCheck()
        if self.path.endswith("PerElementWatermarkGenerator.getSupplier"):
            return PerElement
        if self.last == "forGenerator":
            return WatermarkStrategy.for_generator(args[0])
        made = next((made for end, made in pyflink_java.CLASSES.items() if self.path.endswith(f".{end}")), None)
        if made is not None:
            return made(*args)
        raise NotImplementedError(f"Java: {self.path}")


class JavaRow(common.Row):
    """A row with the methods of the Java class."""

    __slots__ = ()

    def setField(self, index: int, value: Any) -> None:
        self[index] = value

    def equals(self, other: Any) -> bool:
        return bool(_values(self) == _values(other))


def _values(value: Any) -> Any:
    return [_values(field) for field in value] if isinstance(value, common.Row) else value


class JavaSchema:
    """A schema of Headrace, with the methods of the Java class."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    def open(self, context: Any) -> None:
        pass

    def serialize(self, element: Any) -> Any:
        return self.schema.serialize(element)

    def deserialize(self, message: bytes) -> Any:
        return self.schema.deserialize(message)

    def getFieldIndex(self) -> int:
        return int(self.schema.field_index)

    def equals(self, other: JavaSchema) -> bool:
        return bool(self.schema == other.schema)

    def hashCode(self) -> int:
        return hash(self.schema)


class PartitionCheck(MapFunction):
    """Fails unless a record is in the subtask that its second field names."""

    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.count = runtime_context.get_number_of_parallel_subtasks()

    def map(self, value: Any) -> Any:
        assert value[1] % self.count == self.subtask
        return value


class JavaEnvironment:
    """An environment of Headrace, with the methods of the Java class."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def getConfiguration(self) -> JavaConfiguration:
        return JavaConfiguration(self.env.get_configuration())

    def getCachedFiles(self) -> Any:
        entries = (self.env.get_configuration().get("pipeline.cached-files") or "").split(";")
        names = [dict(part.split(":", 1) for part in entry.split(","))["name"] for entry in entries if entry]
        return _List([_Pair(name) for name in names])

    def getStreamGraph(self, clear: bool) -> Any:
        nodes = [_Node(node.name, node.slot_sharing_group) for node in self.env._pipeline.next_job()]
        groups = self.env._slot_sharing_groups

        def resource(name: str) -> _Optional:
            group = groups[name]
            return _Optional(None if group.get_cpu_cores() is None else _Resource(group))

        return types.SimpleNamespace(getStreamNodes=lambda: _List(nodes), getSlotSharingGroupResource=resource)


class _List(list[Any]):
    def size(self) -> int:
        return len(self)

    def toArray(self) -> _List:
        return self


class _Pair:
    def __init__(self, first: Any) -> None:
        self.getField = lambda index: first


class _Node:
    def __init__(self, name: str, group: str | None) -> None:
        self.getOperatorName, self.getSlotSharingGroup = lambda: name, lambda: group


class _Optional:
    def __init__(self, value: Any) -> None:
        self.get, self.isPresent = lambda: value, lambda: value is not None


class _Resource:
    def __init__(self, group: Any) -> None:
        self.getCpuCores = lambda: types.SimpleNamespace(getValue=group.get_cpu_cores)
        self.getTaskHeapMemory = group.get_task_heap_memory


class JavaStrategy:
    """A watermark strategy of Headrace, with what the tests ask the Java object for."""

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self.strategy = strategy

    def createWatermarkGenerator(self, context: Any) -> JavaStrategy:
        return self

    def getAlignmentParameters(self) -> Any:
        found = self.strategy.alignment
        return types.SimpleNamespace(
            getWatermarkGroup=lambda: found.group,
            getMaxAllowedWatermarkDrift=lambda: found.max_drift,
            getUpdateInterval=lambda: found.update_interval,
        )

    def is_a(self, name: str) -> bool:
        own = self.strategy
        return {
            "WatermarkStrategyWithIdleness": own.idle_after is not None,
            "WatermarksWithWatermarkAlignment": own.alignment is not None,
            "AscendingTimestampsWatermarks": own.out_of_orderness == 0,
            "BoundedOutOfOrdernessWatermarks": own.out_of_orderness is not None,
            "NoWatermarksGenerator": own.generator is None and own.out_of_orderness is None,
        }[name]

    def field(self, name: str) -> Any:
        if name == "outOfOrdernessMillis":
            return self.strategy.out_of_orderness
        return types.SimpleNamespace(toMillis=lambda: self.strategy.idle_after)


class PerElement(WatermarkGenerator):
    """A watermark after each record, as in the Java class of this name."""

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        output.emit_watermark(Watermark(event_timestamp))

    def on_periodic_emit(self, output: Any) -> None:
        pass


class Wrapping:
    """A class of which the tests make objects from Java ones: here those are Headrace's already."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = next(iter([*args, *kwargs.values()]))
        return given if isinstance(given, self._kind) else self._kind(*args, **kwargs)


class TestConfiguration(common.Configuration):
    """Takes the Java configuration of an environment, and changes that one."""

    def __init__(self, other: Any = None, j_configuration: JavaConfiguration | None = None) -> None:
        super().__init__(other)
        if j_configuration is not None:
            self._layers = j_configuration.configuration._layers


class PyFlinkTestCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.tempdir = tempfile.mkdtemp()

    @classmethod
    def tearDownClass(cls) -> None:
        shutil.rmtree(cls.tempdir, ignore_errors=True)

    @classmethod
    def assert_equals(cls, actual: list[Any], expected: list[Any]) -> None:
        assert sorted(actual) == sorted(expected)

    @classmethod
    def to_py_list(cls, actual: Any) -> list[Any]:
        return list(actual)


class _WithEnvironment(PyFlinkTestCase):
    mode = datastream.RuntimeExecutionMode.STREAMING

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.env = datastream.StreamExecutionEnvironment.get_execution_environment()
        cls.env.set_parallelism(2)
        cls.env.set_runtime_mode(cls.mode)


class PyFlinkStreamingTestCase(_WithEnvironment):
    pass


class PyFlinkBatchTestCase(_WithEnvironment):
    mode = datastream.RuntimeExecutionMode.BATCH


class PyFlinkUTTestCase(PyFlinkTestCase):
    def setUp(self) -> None:
        self.env = datastream.StreamExecutionEnvironment.get_execution_environment()
        self.env.set_parallelism(2)


def run_with_config(options: dict[str, str]) -> Any:
    def decorate(method: Any) -> Any:
        def run(self: Any, *args: Any) -> Any:
            for key, value in options.items():
                self.env.get_configuration().set(key, value)
            try:
                return method(self, *args)
            finally:
                for key in options:
                    self.env.get_configuration().remove_config(key)

        run.__name__ = method.__name__
        return run

    return decorate


def _refuse(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("Java internals")


def _module(name: str, **names: Any) -> None:
    found = types.ModuleType(f"pyflink_stand_ins.{name}")
    for key, value in names.items():
        setattr(found, key, value)
    sys.modules[found.__name__] = found


def install_stand_ins() -> None:
    gateway = types.SimpleNamespace(jvm=JavaName())
    sys.modules["pyflink_stand_ins"] = types.ModuleType("pyflink_stand_ins")
    cases = {
        "PyFlinkTestCase": PyFlinkTestCase,
        "PyFlinkITTestCase": _WithEnvironment,
        "PyFlinkUTTestCase": PyFlinkUTTestCase,
        "PyFlinkStreamingTestCase": PyFlinkStreamingTestCase,
        "PyFlinkBatchTestCase": PyFlinkBatchTestCase,
        "PyFlinkStreamTableTestCase": _WithEnvironment,
        "run_with_config": run_with_config,
        "exec_insert_table": _refuse,
        "invoke_java_object_method": _refuse,
        "to_java_data_structure": lambda value: value,
        "_load_specific_flink_module_jars": lambda path: None,
    }
    _module("testing.test_case_utils", **cases)
    _module(
        "datastream.tests.test_util",
        DataStreamTestSinkFunction=DataStreamTestSinkFunction,
        SecondColumnTimestampAssigner=SecondColumnTimestampAssigner,
    )
    _module("java_gateway", get_gateway=lambda: gateway)
    _module("find_flink_home", _find_flink_source_root=lambda: "", _find_flink_home=lambda: "")
    _module(
        "pyflink_gateway_server",
        on_windows=lambda: False,
        get_log_dir=_refuse,
        prepare_environment_variables=_refuse,
    )
    _module(
        "util.java_utils",
        get_j_env_configuration=lambda env: env.getConfiguration(),
        is_instance_of=lambda value, name: value.is_a(name.last),
        get_field_value=lambda value, name: value.field(name),
        load_java_class=_refuse,
        to_jarray=lambda _, values: values,
    )
    pyflink_java.install(_module)
    environment = datastream.StreamExecutionEnvironment
    environment._j_stream_execution_environment = property(JavaEnvironment)
    datastream.DataStream._j_data_stream = property(lambda stream: stream)
    WatermarkStrategy._j_watermark_strategy = property(JavaStrategy)
    with suppress(ModuleNotFoundError):
        schemas = importlib.import_module("headrace.pyflink.common.serialization")
        schemas.SerializationSchema._j_serialization_schema = property(JavaSchema)
        schemas.DeserializationSchema._j_deserialization_schema = property(JavaSchema)
    common.Configuration = sys.modules["headrace.pyflink.common.configuration"].Configuration = TestConfiguration


STAND_INS = (
    "testing.test_case_utils|testing|datastream.tests.test_util|java_gateway|find_flink_home|pyflink_gateway_server|"
    "util.java_utils"
)


def adapt(source: str) -> str:
    """Change the root of the imports."""
    source = re.sub(rf"(?m)^(\s*from )pyflink\.({STAND_INS})( import)", r"\1pyflink_stand_ins.\2\3", source)
    source = re.sub(r"(?m)^(\s*(?:from|import) )pyflink\b", r"\1headrace.pyflink", source)
    source = re.sub(r"(?m)^from py4j\.java_gateway import", "from pyflink_stand_ins.py4j.java_gateway import", source)
    # A failed job is a Java error in PyFlink.
    return source.replace(
        "from py4j.protocol import Py4JJavaError", "from headrace.errors import HeadraceError as Py4JJavaError"
    )


def load(path: Path) -> types.ModuleType:
    name = f"pyflink_{path.stem}"
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    cloudpickle.register_pickle_by_value(module)
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": lenient_import}
    exec(compile(adapt(path.read_text(encoding="utf-8")), str(path), "exec"), module.__dict__)
    # The tests wrap Java objects with these.
    if path.stem == "test_data_stream":
        module.DataStream = lambda stream: stream
    for name in ("WatermarkStrategy", "MemorySize"):
        if name in module.__dict__:
            module.__dict__[name] = Wrapping(module.__dict__[name])
    return module


class _Lenient:
    """A module in which a missing name is a class that cannot be made: only tests that use it fail."""

    def __init__(self, name: str, module: Any) -> None:
        self._name, self._module = name, module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(self._module, name)
        except Exception:  # it is missing, or asking for it says why
            return _missing(f"{self._name}.{name}")


def _missing(name: str) -> type:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"Headrace has no {name}")

    kind = type("Missing", (type,), {"__getattr__": refuse, "__getitem__": refuse})
    return kind(name.rpartition(".")[2], (), {"__init__": refuse})


def lenient_import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    ours = name.startswith(("headrace.pyflink", "pyflink_stand_ins", "avro"))
    if not ours or not fromlist:
        return builtins.__import__(name, globals, locals, fromlist, level)
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError:
        found = None
    return _Lenient(name, found)


# --- running ------------------------------------------------------------------------------------------------------------


class Outcome:
    """What became of each test: `key` is file and method, with `[batch]` for a batch variant."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = {}

    def add(self, key: str, text: str) -> None:
        self.tests.setdefault(key, []).append(text)

    def worst(self, key: str) -> str:
        return max(self.tests[key], key=lambda text: (text != "pass", text))


def tests_of(module: types.ModuleType) -> list[unittest.TestCase]:
    loader = unittest.TestLoader()
    own = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, unittest.TestCase) and kind.__module__ == module.__name__
    ]
    return [test for kind in own for test in loader.loadTestsFromTestCase(kind)]


def run_file(root: Path, file: str, outcome: Outcome, patterns: list[str], threads: bool) -> None:
    short = file.replace("/tests/", "/").removesuffix(".py").replace("test_", "")
    try:
        module = load(root / file)
    except Exception as error:
        for name in re.findall(r"(?m)^    def (test_\w+)", (root / file).read_text(encoding="utf-8")):
            if _wanted(f"{short}.{name}", patterns):
                outcome.add(f"{short}.{name}", f"import: {type(error).__name__}: {error}")
        return
    by_class: dict[type, list[unittest.TestCase]] = {}
    for test in tests_of(module):
        by_class.setdefault(type(test), []).append(test)
    known = {test.id().rpartition(".")[2] for kind, tests in by_class.items() if not _is_thread(kind) for test in tests}
    for kind, tests in by_class.items():
        chosen = []
        for test in tests:
            name = test.id().rpartition(".")[2]
            key = f"{short}.{name}" + ("[batch]" if "Batch" in kind.__name__ else "")
            # Thread mode is the same code here: only what process mode does not have is run.
            if _wanted(key, patterns) and (threads or not _is_thread(kind) or name not in known):
                chosen.append((key, test))
        if not chosen:
            continue
        try:
            kind.setUpClass()
        except Exception as error:
            for key, _ in chosen:
                outcome.add(key, f"setUpClass: {error}")
            continue
        for key, test in chosen:
            outcome.add(key, run_one(test))
            print(
                f"{'ok  ' if outcome.tests[key][-1] == 'pass' else 'FAIL'} {key}  {outcome.tests[key][-1][:300]}",
                flush=True,
            )
        kind.tearDownClass()


def _is_thread(kind: type) -> bool:
    return kind.__name__.startswith("Embedded")


def _wanted(key: str, patterns: list[str]) -> bool:
    return not patterns or any(pattern in key for pattern in patterns)


def run_one(test: unittest.TestCase) -> str:
    result = unittest.TestResult()
    test.run(result)
    if result.skipped:
        return f"skipped by PyFlink: {result.skipped[0][1]}"
    problems = [*result.errors, *result.failures]
    if not problems:
        return "pass"
    lines = problems[0][1].strip().splitlines()
    found = next(
        (line for line in lines if re.match(r"[\w.]*(Error|Exception|Failed|Argument|Mismatch)\b", line)), lines[-1]
    )
    return found.strip() or lines[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of apache/flink at release-2.3.0")
    parser.add_argument("--local", action="store_true", help="run jobs in the local runtime")
    parser.add_argument("--threads", action="store_true", help="run the thread-mode variants as well")
    parser.add_argument(
        "-k", action="append", default=[], metavar="TEXT", help="only tests whose name contains the text"
    )
    parser.add_argument("--master", default="local[64]", help="Spark master (default: local[64])")
    given = parser.parse_args()
    root = given.checkout
    if not (root / "datastream").is_dir():
        root = root / "flink-python" / "pyflink"
    warnings.simplefilter("ignore")
    os.environ.setdefault("FLINK_TESTING", "1")
    set_process_defaults(CoreConfiguration({config.SPARK_MASTER: given.master, config.REST_ENABLED: False}))
    if given.local:
        use_local_runtime({})
    install_stand_ins()
    outcome = Outcome()
    # Sinks and tests make directories and files, and do not delete them: they go into one, which is deleted at the end.
    with tempfile.TemporaryDirectory(prefix="pyflink-tests-", ignore_cleanup_errors=True) as directory:
        tempfile.tempdir = directory
        try:
            for file in FILES:
                run_file(root, file, outcome, given.k, given.threads)
        finally:
            tempfile.tempdir = None
    return report(outcome)


def report(outcome: Outcome) -> int:
    counts = {"pass": 0, "fail": 0, "not testable": 0}
    batch = {"pass": 0, "fail": 0}
    out = io.StringIO()
    for key in sorted(outcome.tests):
        text = outcome.worst(key)
        reason = NOT_TESTABLE.get(key.rpartition(".")[2])
        if key.endswith("[batch]"):
            batch["pass" if text == "pass" else "fail"] += 1
        elif text == "pass":
            counts["pass"] += 1
        elif reason is not None or text.startswith("skipped"):
            counts["not testable"] += 1
            text = reason or text
        else:
            counts["fail"] += 1
        if text != "pass":
            out.write(f"{key}: {text[:200]}\n")
    print("\nNot passed:\n" + out.getvalue())
    print(
        f"{counts['pass']} of {counts['pass'] + counts['fail']} testable methods pass ({counts['not testable']} are not testable)"
    )
    print(f"{batch['pass']} of {sum(batch.values())} batch variants pass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
