from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import config
from headrace.config import Configuration, OptionKind, Origin, format_value, parse_value
from headrace.errors import ConfigError

# docs/design/spec.md, section 11, with its abbreviated keys written out; what is not built is not in the table
SPEC_SECTION_11 = """
execution.checkpointing.interval: none
execution.checkpointing.interval-during-backlog: none
execution.checkpointing.mode: EXACTLY_ONCE
execution.checkpointing.timeout: 10 min
execution.checkpointing.min-pause: 0 ms
execution.checkpointing.max-concurrent-checkpoints: 1
execution.checkpointing.tolerable-failed-checkpoints: 0
execution.checkpointing.externalized-checkpoint-retention: NO_EXTERNALIZED_CHECKPOINTS
execution.checkpointing.num-retained: 1
execution.checkpointing.storage: none
execution.checkpointing.dir: none
execution.checkpointing.savepoint-dir: none
execution.checkpointing.create-subdir: true
execution.checkpointing.data-inline-threshold: 20 kb
execution.checkpointing.write-buffer-size: 4096
execution.checkpointing.incremental: false
execution.checkpointing.unaligned.enabled: false
execution.checkpointing.unaligned.forced: false
execution.checkpointing.aligned-checkpoint-timeout: 0
execution.checkpointing.checkpoints-after-tasks-finish: true
execution.checkpointing.local-backup.enabled: false
execution.checkpointing.local-backup.dirs: none
execution.state-recovery.from-local: false
execution.state-recovery.path: none
execution.state-recovery.claim-mode: NO_CLAIM
execution.state-recovery.ignore-unclaimed-state: false
execution.state-recovery.without-channel-state.checkpoint-id: -1
state.backend.type: hashmap
state.backend.rocksdb.compaction.filter.query-time-after-num-entries: 1000
state.backend.rocksdb.compaction.filter.periodic-compaction-time: 30 d
pipeline.max-parallelism: -1
pipeline.auto-generate-uids: true
sink.committer.retries: 10
web.checkpoints.history: 10
rest.async.store-duration: 5 min
"""


def text_of(call) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10 min", 600_000),
        ("10min", 600_000),
        ("10 m", 600_000),
        ("500 ms", 500),
        ("1 s", 1000),
        ("1 Seconds", 1000),
        ("2 h", 7_200_000),
        ("1 d", 86_400_000),
        ("30000 us", 30),
        ("30000 µs", 30),
        ("250", 250),
        (" 250 ", 250),
        (250, 250),
        (timedelta(seconds=1.5), 1500),
    ],
)
def test_a_duration_is_read_in_flinks_forms(text, milliseconds):
    assert Configuration({"execution.checkpointing.timeout": text}).get(config.CHECKPOINT_TIMEOUT) == milliseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20 kb", 20 * 1024),
        ("64mb", 64 << 20),
        ("64 MB", 64 << 20),
        ("1g", 1 << 30),
        ("1 tb", 1 << 40),
        ("7 bytes", 7),
        ("4096", 4096),
        (4096, 4096),
    ],
)
def test_a_memory_size_is_read_in_flinks_forms(text, size):
    assert Configuration({"headrace.buffer.size": text}).get(config.BUFFER_SIZE) == size


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("False", False), (True, True)])
def test_a_bool_is_read(value, expected):
    assert Configuration({"pipeline.object-reuse": value}).get(config.OBJECT_REUSE) is expected


def test_an_enum_is_read_in_any_case_and_given_in_its_own():
    assert Configuration({"execution.checkpointing.mode": "at_least_once"}).get(config.CHECKPOINT_MODE) == (
        "AT_LEAST_ONCE"
    )


def test_a_directory_may_be_a_path(tmp_path):
    assert Configuration({"execution.checkpointing.dir": tmp_path}).get(config.CHECKPOINT_DIR) == str(tmp_path)


def test_the_buffer_timeout_may_be_minus_one_and_zero():
    assert Configuration({"execution.buffer-timeout": "-1"}).get(config.BUFFER_TIMEOUT) == -1
    assert Configuration({"execution.buffer-timeout": "0"}).get(config.BUFFER_TIMEOUT) == 0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "execution.checkpointing.timeout",
            "ten minutes",
            (
                "option 'execution.checkpointing.timeout': 'ten minutes' is not a duration of whole milliseconds "
                "(ms, s, min, h, d) of at least 10 ms; for example '10 s'"
            ),
        ),
        (
            "headrace.slice.target",
            "500 us",
            (
                "option 'headrace.slice.target': '500 us' is not a duration of whole milliseconds "
                "(ms, s, min, h, d) of at least 1 ms; for example '10 s'"
            ),
        ),
        (
            "execution.buffer-timeout",
            "-2",
            (
                "option 'execution.buffer-timeout': '-2' is not a duration of whole milliseconds "
                "(ms, s, min, h, d) of at least -1 ms; for example '10 s'"
            ),
        ),
        (
            "headrace.buffer.size",
            "64 miles",
            (
                "option 'headrace.buffer.size': '64 miles' is not a memory size (b, kb, mb, gb, tb) "
                "of at least 1 bytes; for example '64 mb'"
            ),
        ),
        (
            "parallelism.default",
            0,
            "option 'parallelism.default': 0 is not a whole number of at least 1; for example '4'",
        ),
        (
            "parallelism.default",
            "two",
            "option 'parallelism.default': 'two' is not a whole number of at least 1; for example '4'",
        ),
        (
            "parallelism.default",
            True,
            "option 'parallelism.default': True is not a whole number of at least 1; for example '4'",
        ),
        (
            "pipeline.object-reuse",
            "yes",
            "option 'pipeline.object-reuse': 'yes' is not true or false; for example 'true'",
        ),
        (
            "execution.checkpointing.mode",
            "TWICE",
            (
                "option 'execution.checkpointing.mode': 'TWICE' is not one of EXACTLY_ONCE, AT_LEAST_ONCE; "
                "for example 'EXACTLY_ONCE'"
            ),
        ),
        (
            "restart-strategy.exponential-delay.jitter-factor",
            "nan",
            (
                "option 'restart-strategy.exponential-delay.jitter-factor': 'nan' is not a number of at least 0; "
                "for example '1.5'"
            ),
        ),
        ("pipeline.name", "", "option 'pipeline.name': '' is not a non-empty text; for example 'name'"),
        ("pipeline.name", None, "option 'pipeline.name': None is not a non-empty text; for example 'name'"),
        ("parallelism.default", "9" * 5000, None),
    ],
)
def test_a_bad_value_names_key_value_form_and_example(key, value, message):
    text = text_of(lambda: Configuration().set(key, value))
    assert message is None or text == f"[HR-1001] {message}"


@given(st.sampled_from(sorted(config.OPTIONS)), st.integers(min_value=10, max_value=10**15))
def test_what_is_written_is_read_back(key, number):
    option = config.OPTIONS[key]
    if option.kind in (OptionKind.INT, OptionKind.DURATION, OptionKind.MEMORY):
        assert parse_value(option, format_value(option, number)) == number


@given(st.text())
def test_any_text_is_read_or_refused_by_name(text):
    for option in (config.BUFFER_TIMEOUT, config.BUFFER_SIZE, config.PARALLELISM, config.EXPONENTIAL_JITTER):
        try:
            parse_value(option, text)
        except ConfigError as error:
            assert option.key in str(error)  # noqa: PT017  (both outcomes are right)


# --- keys -------------------------------------------------------------------------------------------------------------


def refused(settings) -> str:
    return text_of(Configuration(settings).check)


def test_a_configuration_holds_any_key():
    configuration = Configuration({"nobody.knows.this": 2})
    assert configuration.get("nobody.knows.this") == "2"
    assert configuration.get_integer("nobody.knows.this", 0) == 2
    assert configuration.to_dict() == {"nobody.knows.this": "2"}
    assert configuration.get("zzz") is None
    assert Configuration(configuration) == configuration


def test_an_unknown_key_suggests_the_closest():
    assert refused({"paralelism.default": 2}) == (
        "[HR-1002] unknown option 'paralelism.default' (from code); did you mean 'parallelism.default'? "
        "`headrace options` lists all options; keys of your own start with 'user.', keys for Spark with 'spark.'"
    )


def test_an_unknown_key_close_to_an_older_one_suggests_todays():
    assert "did you mean 'execution.checkpointing.dir'?" in refused({"state.checkpoint.dir": "/chk"})


def test_an_unknown_key_like_none_suggests_nothing():
    assert "did you mean" not in refused({"zzz": 1})


def test_the_place_of_an_unknown_key_is_named(tmp_path):
    file = tmp_path / "headrace.yaml"
    file.write_text("parallelism.defalt: 4")
    assert text_of(config.from_file(file).check).startswith(
        "[HR-1002] unknown option 'parallelism.defalt' (from headrace.yaml);"
    )
    assert "(from -D)" in text_of(config.from_assignments(["a.b=1"]).check)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("taskmanager.numberOfTaskSlots", 4),
        ("jobmanager.memory.process.size", "1600m"),
        ("pipeline.jars", "file:///kafka.jar"),
        ("python.fn-execution.bundle.size", 1),
        ("pipeline.closure-cleaner-level", "NONE"),
        ("state.backend.rocksdb.thread.num", 4),
        ("state.changelog.enabled", "true"),
        ("execution.checkpointing.file-merging.enabled", "true"),
    ],
)
def test_a_key_of_flink_without_effect_is_accepted_with_a_warning_that_names_it(key, value):
    (warning,) = Configuration({key: value, "parallelism.default": 2, "user.a": 1, "spark.b": 2}).check()
    assert warning.startswith(f"option {key!r} has no effect: ")


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("execution.checkpointing.sync-phase-timeout", "10 s", "execution.checkpointing.timeout"),
        ("pipeline.sources.pause-until-first-checkpoint", True, "sources are not held back"),
        ("python.executable", "/usr/bin/python3", "use spark.pyspark.python"),
    ],
)
def test_a_key_of_flink_that_would_change_the_job_is_refused_with_what_to_use(key, value, instead):
    text = refused({key: value})
    assert text.startswith(f"[HR-1002] option {key!r} with the value ")
    assert instead in text


def test_no_key_of_the_table_is_hidden_by_another_rule():
    for option in config.OPTIONS.values():
        value = (
            option.choices[0]
            if option.choices
            else {OptionKind.BOOL: "true", OptionKind.STRING: "x"}.get(option.kind, "10")
        )
        assert Configuration({option: value}).check() == []


def test_an_option_falls_back_to_another():  # SPEC R7.7
    """As Flink's withFallbackKeys: local copies are written where they are to be read."""
    assert Configuration({"state.backend.local-recovery": True}).get(config.LOCAL_BACKUP) is True
    off = Configuration({"state.backend.local-recovery": True, "execution.checkpointing.local-backup.enabled": False})
    assert off.get(config.LOCAL_BACKUP) is False
    assert Configuration().get(config.LOCAL_BACKUP) is False


def test_older_keys_are_mapped():
    configuration = Configuration({"state.checkpoints.dir": "/chk", "restart-strategy": "none"})
    assert configuration.to_dict() == {"execution.checkpointing.dir": "/chk", "restart-strategy.type": "none"}
    assert configuration.get("state.checkpoints.dir") == "/chk"
    assert configuration.contains_key("state.checkpoints.dir")
    assert configuration.get_string("state.checkpoints.dir", "") == "/chk"


def test_spark_and_user_keys_are_free():
    configuration = Configuration({"spark.executor.cores": 4, "spark.speculation": False, "user.city": "Basel"})
    assert configuration.spark_options() == {"spark.executor.cores": "4", "spark.speculation": "false"}
    assert configuration.get("user.city") == "Basel"
    assert configuration.get("user.street") is None


def test_every_option_is_described_and_its_default_is_valid():
    for option in config.OPTIONS.values():
        assert option.doc.endswith("."), option.key
        if option.default is not None:
            assert parse_value(option, config.default_text(option)) == option.default, option.key


def test_the_table_has_the_keys_and_defaults_of_the_spec():
    for line in SPEC_SECTION_11.strip().splitlines():
        key, _, default = line.partition(": ")
        option = config.OPTIONS[key]
        assert option.default == (None if default == "none" else parse_value(option, default)), key


# --- layers -----------------------------------------------------------------------------------------------------------


def layered(*origins: Origin) -> Configuration:
    configuration = Configuration()
    for number, origin in enumerate(origins, start=1):
        configuration.set("parallelism.default", number, origin)
    return configuration


@pytest.mark.parametrize(
    ("origins", "value", "origin"),
    [
        ((), 1, Origin.DEFAULT),
        ((Origin.FILE,), 1, Origin.FILE),
        ((Origin.COMMAND_LINE, Origin.FILE), 1, Origin.COMMAND_LINE),
        ((Origin.FILE, Origin.CODE, Origin.COMMAND_LINE), 2, Origin.CODE),
    ],
)
def test_the_strongest_layer_wins_whatever_the_order(origins, value, origin):
    configuration = layered(*origins)
    assert configuration.get(config.PARALLELISM) == value
    assert configuration.origin("parallelism.default") is origin


def test_add_all_keeps_the_layers():
    configuration = Configuration({"parallelism.default": 7}).add_all(layered(Origin.COMMAND_LINE))
    assert configuration.get(config.PARALLELISM) == 7
    assert configuration.remove_config("parallelism.default")
    assert not configuration.remove_config("parallelism.default")
    assert configuration.get(config.PARALLELISM) == 1
    assert configuration.origin(config.PARALLELISM) is Origin.COMMAND_LINE


def test_add_all_with_a_prefix():
    assert Configuration().add_all(Configuration({"user.a": 1}), prefix="user.").to_dict() == {"user.user.a": "1"}


def test_a_copy_is_its_own():
    first = Configuration({"parallelism.default": 2})
    second = Configuration(first)
    assert first == second
    second.set("parallelism.default", 3)
    assert first.get(config.PARALLELISM) == 2
    assert first != second


def test_changed_tells_what_differs_from_the_defaults():
    configuration = layered(Origin.COMMAND_LINE).set("headrace.buffer.size", "64 kb").set("spark.a", "b")
    assert list(configuration.changed()) == [
        ("headrace.buffer.size", "64 kb", Origin.CODE),
        ("spark.a", "b", Origin.CODE),
    ]


# --- PyFlink's spelling -----------------------------------------------------------------------------------------------


def test_pyflinks_methods():
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.interval", "10 s")
    configuration.set_integer("parallelism.default", 3)
    configuration.set_boolean("pipeline.object-reuse", True)
    configuration.set_float("restart-strategy.exponential-delay.jitter-factor", 0.5)
    assert configuration.get_string("execution.checkpointing.interval", "") == "10 s"
    assert configuration.get_integer("execution.checkpointing.interval", 0) == 10_000
    assert configuration.get_integer("parallelism.default", 0) == 3
    assert configuration.get_boolean("pipeline.object-reuse", False) is True
    assert configuration.get_float("restart-strategy.exponential-delay.jitter-factor", 0.0) == 0.5
    assert configuration.contains_key("parallelism.default")
    assert not configuration.contains_key("nobody.knows.this")
    assert configuration.key_set() == set(configuration.to_dict())


def test_pyflinks_getters_give_the_callers_default():
    configuration = Configuration({"user.flag": True, "user.count": 7})
    assert configuration.get_string("pipeline.name", "mine") == "mine"
    assert configuration.get_integer("parallelism.default", 9) == 9
    assert configuration.get_boolean("pipeline.object-reuse", True) is True
    assert configuration.get_float("user.none", 0.5) == 0.5
    assert configuration.get_boolean("user.flag", False) is True
    assert configuration.get_integer("user.count", 0) == 7


# --- files, -D, process -----------------------------------------------------------------------------------------------


def test_a_file_may_be_flat_or_nested(tmp_path):
    file = tmp_path / "headrace.yaml"
    file.write_text(
        "parallelism.default: 4\n"
        "restart-strategy: {type: off}\n"
        "execution:\n  checkpointing:\n    interval: 10 s\n"
        "spark.executor.memory: 0123\n"
    )
    configuration = config.from_file(file)
    assert configuration.to_dict() == {
        "parallelism.default": "4",
        "restart-strategy.type": "off",
        "execution.checkpointing.interval": "10 s",
        "spark.executor.memory": "0123",
    }
    assert configuration.origin("parallelism.default") is Origin.FILE


def test_an_empty_file_sets_nothing(tmp_path):
    file = tmp_path / "headrace.yaml"
    file.write_text("# nothing\n")
    assert config.from_file(file) == Configuration()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n", "{}: the file holds a list or bare value; expected lines like 'parallelism.default: 4'"),
        (
            "parallelism.default: [1]",
            "{}: option 'parallelism.default' holds a list or bare value; expected lines like 'parallelism.default: 4'",
        ),
        ("a: [", "{} is not valid YAML: "),
        ("parallelism.default: x", "{}: option 'parallelism.default': 'x' is not a whole number"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, message):
    file = tmp_path / "headrace.yaml"
    file.write_text(content)
    assert text_of(lambda: config.from_file(file)).startswith(f"[HR-1005] {message.format(file)}")


def test_a_missing_file_is_named(tmp_path):
    file = tmp_path / "none.yaml"
    assert text_of(lambda: config.from_file(file)) == f"[HR-1005] cannot read {file}: No such file or directory"


def test_assignments_may_hold_equals_signs():
    configuration = config.from_assignments(["user.query=a=b", " parallelism.default = 2 "])
    assert configuration.to_dict() == {"user.query": "a=b", "parallelism.default": "2"}


@pytest.mark.parametrize("text", ["parallelism.default", "=4"])
def test_a_bad_assignment_shows_the_form(text):
    assert text_of(lambda: config.from_assignments([text])) == (
        f"[HR-1003] -D {text}: expected key=value, for example -D parallelism.default=4"
    )


def test_process_defaults_are_copied_both_ways():
    mine = Configuration({"parallelism.default": 5})
    try:
        config.set_process_defaults(mine)
        mine.set("parallelism.default", 6)
        config.process_defaults().set("parallelism.default", 7)
        assert config.process_defaults().get(config.PARALLELISM) == 5
    finally:
        config.set_process_defaults(Configuration())
