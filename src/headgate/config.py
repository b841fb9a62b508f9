"""Every option of Headgate in one table, and the configuration that holds their values.

An option is found under Flink's key where Flink has it; keys of our own start with `headgate.`. A value comes from one
of four places, the first that has it wins:

    code (env or Configuration)  >  -D key=value  >  headgate.yaml  >  default

Durations are whole milliseconds and memory sizes are bytes once they are read; in text they carry a unit ("10 min",
"256 kb"). Keys that start with `spark.` go to Spark as they are, keys that start with `user.` belong to the program.
"""

from __future__ import annotations

import difflib
import enum
import math
import os
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, overload

from headgate.errors import ConfigError
from headgate.options import *  # noqa: F403 - options are asked for as config.PARALLELISM, beside Configuration
from headgate.options import CURRENT_KEY, DAY, HOUR, KB, MB, MINUTE, OPTIONS, SECOND, Kind, Option, T

Value = bool | int | float | str


class Origin(enum.Enum):
    """Where a value came from, strongest first."""

    CODE = "code"
    COMMAND_LINE = "-D"
    FILE = "headgate.yaml"
    DEFAULT = "default"


# --- Text <-> value ---------------------------------------------------------------------------------------------------

_QUANTITY: Final = re.compile(r"([+-]?\d{1,18})\s*([^\d\s]*)")
_MICROSECONDS: Final[dict[str, int]] = {
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000 * SECOND),
    **dict.fromkeys(("min", "m", "minute", "minutes"), 1000 * MINUTE),
    **dict.fromkeys(("h", "hour", "hours"), 1000 * HOUR),
    **dict.fromkeys(("d", "day", "days"), 1000 * DAY),
}
_BYTES: Final[dict[str, int]] = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kibibytes"), KB),
    **dict.fromkeys(("m", "mb", "mebibytes"), MB),
    **dict.fromkeys(("g", "gb", "gibibytes"), 1024 * MB),
    **dict.fromkeys(("t", "tb", "tebibytes"), 1024 * 1024 * MB),
}
_EXPECTED: Final[dict[Kind, tuple[str, str]]] = {
    Kind.BOOL: ("true or false", "true"),
    Kind.INT: ("a whole number", "4"),
    Kind.FLOAT: ("a number", "1.5"),
    Kind.STRING: ("a non-empty text", "name"),
    Kind.DURATION: ("a duration of whole milliseconds (ms, s, min, h, d)", "10 s"),
    Kind.MEMORY: ("a memory size (b, kb, mb, gb, tb)", "64 mb"),
}


def default_text(option: Option[Any]) -> str:
    """The default as a user would write it; "(none)" where there is none.

    >>> default_text(BUFFER_SIZE)
    '256 kb'
    """
    return "(none)" if option.default is None else format_value(option, option.default)


def parse_value(option: Option[Any], value: object) -> Value:
    """Read `value`, a text or a Python value, as `option` wants it.

    >>> parse_value(CHECKPOINT_TIMEOUT, "10 min"), parse_value(BUFFER_SIZE, "64kb")
    (600000, 65536)
    """
    parsed = _read(option, value.strip() if isinstance(value, str) else value)
    too_small = option.minimum is not None and not isinstance(parsed, str | None) and parsed < option.minimum
    if parsed is None or too_small:
        raise ConfigError(_bad_value(option, value))
    return parsed


def format_value(option: Option[Any], value: Value) -> str:
    """Write a value as a user would; `parse_value` reads it back.

    >>> format_value(CHECKPOINT_TIMEOUT, 600_000), format_value(BUFFER_SIZE, 65536), format_value(CHAINING, True)
    ('10 min', '64 kb', 'true')
    """
    if option.kind is Kind.DURATION and isinstance(value, int):
        return _in_largest_unit(value, {"d": DAY, "h": HOUR, "min": MINUTE, "s": SECOND, "ms": 1})
    if option.kind is Kind.MEMORY and isinstance(value, int):
        return _in_largest_unit(value, {"gb": 1024 * MB, "mb": MB, "kb": KB, "bytes": 1})
    return _as_text(value)


def _read(option: Option[Any], value: object) -> Value | None:
    """Give the value, or None where it cannot be read as the option's kind."""
    match option.kind:
        case Kind.BOOL:
            return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())
        case Kind.INT:
            return _read_quantity(value, {"": 1})
        case Kind.FLOAT:
            return _read_float(value)
        case Kind.STRING:
            return str(os.fspath(value)) if isinstance(value, str | os.PathLike) and value else None
        case Kind.DURATION:
            micros = (
                value // timedelta(microseconds=1)
                if isinstance(value, timedelta)
                else _read_quantity(value, _MICROSECONDS)
            )
            # Rounding would turn "500 us" into 0, which often means "never": refuse instead.
            return None if micros is None or micros % 1000 else micros // 1000
        case Kind.MEMORY:
            return _read_quantity(value, _BYTES)
        case Kind.ENUM:
            return {choice.lower(): choice for choice in option.choices}.get(str(value).lower())


def _read_quantity(value: object, units: Mapping[str, int]) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value * units[""]
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None or (factor := units.get(found[2].lower())) is None:
        return None
    return int(found[1]) * factor


def _read_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _bad_value(option: Option[Any], value: object) -> str:
    if option.kind is Kind.ENUM:
        expected, example = f"one of {', '.join(option.choices)}", option.default or option.choices[0]
    else:
        expected, example = _EXPECTED[option.kind]
    if option.minimum is not None:
        expected += f" of at least {format_value(option, option.minimum)}"
    return f"option {option.key!r}: {value!r} is not {expected}; for example {example!r}"


def _in_largest_unit(value: int, units: Mapping[str, int]) -> str:
    unit, factor = next((u, f) for u, f in units.items() if f == 1 or (value and value % f == 0))
    return f"{value // factor} {unit}"


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_SECRETS: Final = (".token", ".password", ".secret", ".secret-key")


def _is_free(key: str) -> bool:
    return key.startswith(("spark.", "user."))


def find_option(key: str) -> Option[Any]:
    """Give the option of this key or older key; an unknown key is an error that names the closest one.

    >>> find_option("state.checkpoints.dir").key
    'execution.checkpointing.dir'
    """
    option = OPTIONS.get(CURRENT_KEY.get(key, key))
    if option is not None:
        return option
    close = difflib.get_close_matches(key, [*OPTIONS, *CURRENT_KEY], n=1)
    hint = f"; did you mean {CURRENT_KEY.get(close[0], close[0])!r}?" if close else ";"
    raise ConfigError(
        f"unknown option {key!r}{hint} `headgate options` lists all options; "
        "keys of your own start with 'user.', keys for Spark with 'spark.'"
    )


# --- The configuration ------------------------------------------------------------------------------------------------


class Configuration:
    """Values of options, each with the place it came from. PyFlink's methods are here beside the typed `get`.

    >>> config = Configuration().set("parallelism.default", "4")
    >>> config.get(PARALLELISM), config.origin(PARALLELISM), config.get(BUFFER_TIMEOUT)
    (4, <Origin.CODE: 'code'>, 100)
    """

    def __init__(self, other: Configuration | Mapping[str, object] | None = None) -> None:
        self._layers: dict[Origin, dict[str, Value]] = {o: {} for o in Origin if o is not Origin.DEFAULT}
        if isinstance(other, Configuration):
            self.add_all(other)
        elif other is not None:
            for key, value in other.items():
                self.set(key, value)

    def set(self, key: str | Option[Any], value: object, origin: Origin = Origin.CODE) -> Configuration:
        """Set an option; the value may be a Python value or a text. Gives itself, for chaining.

        >>> Configuration().set("execution.checkpointing.interval", "10 s").to_dict()
        {'execution.checkpointing.interval': '10 s'}
        """
        name = key.key if isinstance(key, Option) else key
        if _is_free(name):
            self._layers[origin][name] = _as_text(value)
        else:
            option = find_option(name)
            self._layers[origin][option.key] = parse_value(option, value)
        return self

    @overload
    def get(self, key: Option[T]) -> T: ...
    @overload
    def get(self, key: str) -> Any: ...
    def get(self, key: str | Option[Any]) -> Any:
        """Give the value of an option, or its default; None for a `spark.` or `user.` key that is not set.

        >>> Configuration().get("execution.checkpointing.timeout")
        600000
        """
        name = key.key if isinstance(key, Option) else key
        value = self._lookup(name)
        return value if value is not None or _is_free(name) else find_option(name).default

    def origin(self, key: str | Option[Any]) -> Origin:
        """Tell where the value that `get` gives came from.

        >>> Configuration().origin("parallelism.default")
        <Origin.DEFAULT: 'default'>
        """
        name = self._name(key.key if isinstance(key, Option) else key)
        return next((origin for origin, layer in self._layers.items() if name in layer), Origin.DEFAULT)

    def changed(self) -> Iterator[tuple[str, str, Origin]]:
        """Give key, value as text and origin of everything that is set and differs from its default, in key order.

        >>> list(Configuration({"parallelism.default": 2, "pipeline.object-reuse": False}).changed())
        [('parallelism.default', '2', <Origin.CODE: 'code'>)]
        """
        for key, text in sorted(self.to_dict().items()):
            if _is_free(key) or self.get(key) != OPTIONS[key].default:
                yield key, "(hidden)" if key.endswith(_SECRETS) else text, self.origin(key)

    def spark_options(self) -> dict[str, str]:
        """Give the options that belong to Spark.

        >>> Configuration({"spark.executor.memory": "4g", "user.city": "Basel"}).spark_options()
        {'spark.executor.memory': '4g'}
        """
        return {key: text for key, text in self.to_dict().items() if key.startswith("spark.")}

    # PyFlink's spelling. `default_value` is given when the key is not set, whatever the option's own default is.

    def set_string(self, key: str, value: str) -> Configuration:
        """Set an option from text, as `set` does."""
        return self.set(key, value)

    def set_integer(self, key: str, value: int) -> Configuration:
        """Set an option from an int, as `set` does."""
        return self.set(key, value)

    def set_boolean(self, key: str, value: bool) -> Configuration:
        """Set an option from a bool, as `set` does."""
        return self.set(key, value)

    def set_float(self, key: str, value: float) -> Configuration:
        """Set an option from a float, as `set` does."""
        return self.set(key, value)

    def get_string(self, key: str, default_value: str) -> str:
        """Give the value as text.

        >>> Configuration({"headgate.buffer.size": 65536}).get_string("headgate.buffer.size", "")
        '64 kb'
        """
        return self.to_dict().get(self._name(key), default_value)

    def get_integer(self, key: str, default_value: int) -> int:
        """Give the value as int: milliseconds of a duration, bytes of a memory size."""
        value = self._lookup(key)
        return default_value if value is None else int(parse_value(Option(key, Kind.INT, 0, ""), value))

    def get_boolean(self, key: str, default_value: bool) -> bool:
        """Give the value as bool."""
        value = self._lookup(key)
        return default_value if value is None else bool(parse_value(Option(key, Kind.BOOL, default_value, ""), value))

    def get_float(self, key: str, default_value: float) -> float:
        """Give the value as float."""
        value = self._lookup(key)
        return default_value if value is None else float(parse_value(Option(key, Kind.FLOAT, 0.0, ""), value))

    def contains_key(self, key: str) -> bool:
        """Tell whether the key is set anywhere; a key that is not known is simply not set."""
        name = CURRENT_KEY.get(key, key)
        return any(name in layer for layer in self._layers.values())

    def key_set(self) -> AbstractSet[str]:
        """Give the keys that are set."""
        return self.to_dict().keys()

    def remove_config(self, key: str) -> bool:
        """Take back what code has set; what -D or headgate.yaml say shows again. True if there was something."""
        return self._layers[Origin.CODE].pop(self._name(key), None) is not None

    def add_all(self, other: Configuration, prefix: str = "") -> Configuration:
        """Take over every value of `other`, each into the layer it has there; `prefix` goes before each key."""
        for origin, layer in other._layers.items():
            for key, value in layer.items():
                self.set(prefix + key, value, origin)
        return self

    def to_dict(self) -> dict[str, str]:
        """Give what is set as text, strongest layer first applied.

        >>> Configuration({"execution.buffer-timeout": 0, "user.city": "Basel"}).to_dict()
        {'execution.buffer-timeout': '0 ms', 'user.city': 'Basel'}
        """
        merged: dict[str, Value] = {}
        for layer in reversed(self._layers.values()):
            merged.update(layer)
        return {k: str(v) if _is_free(k) else format_value(OPTIONS[k], v) for k, v in merged.items()}

    def _name(self, key: str) -> str:
        return key if _is_free(key) else find_option(key).key

    def _lookup(self, key: str) -> Value | None:
        name = self._name(key)
        return next((layer[name] for layer in self._layers.values() if name in layer), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._layers == other._layers

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        shown = {key: "(hidden)" if key.endswith(_SECRETS) else text for key, text in self.to_dict().items()}
        return f"Configuration({shown!r})"


# --- headgate.yaml, -D and the process --------------------------------------------------------------------------------


def from_assignments(assignments: list[str]) -> Configuration:
    """Read the `key=value` texts of the command line.

    >>> from_assignments(["parallelism.default=4"]).origin(PARALLELISM)
    <Origin.COMMAND_LINE: '-D'>
    """
    configuration = Configuration()
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"-D {text}: expected key=value, for example -D parallelism.default=4")
        configuration.set(key.strip(), value.strip(), Origin.COMMAND_LINE)
    return configuration


def from_file(path: str | Path) -> Configuration:
    """Read a `headgate.yaml`: flat keys (`parallelism.default: 4`) or nested ones, as in Flink's config.yaml."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        # BaseLoader keeps every value a text: `off` stays "off", `0123` stays "0123". The options know their kinds.
        tree = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    configuration = Configuration()
    try:
        for key, value in _flatten(tree or {}):
            configuration.set(key, value, Origin.FILE)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return configuration


def _flatten(tree: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix and isinstance(tree, str):
        yield prefix, tree
    else:
        where = f"option {prefix!r}" if prefix else "the file"
        raise ConfigError(f"{where} holds a list or bare value; expected lines like 'parallelism.default: 4'")


_process_defaults = Configuration()


def set_process_defaults(configuration: Configuration) -> None:
    """Make `configuration` the start of every environment of this process; `headgate run` does so."""
    global _process_defaults  # noqa: PLW0603  (one per process is the meaning of it)
    _process_defaults = Configuration(configuration)


def process_defaults() -> Configuration:
    """Give a copy of what `set_process_defaults` was given; empty if it was not called.

    >>> set_process_defaults(from_assignments(["parallelism.default=4"]))
    >>> process_defaults().get(PARALLELISM)
    4
    >>> set_process_defaults(Configuration())
    """
    return Configuration(_process_defaults)
