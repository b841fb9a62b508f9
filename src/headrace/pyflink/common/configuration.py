"""`pyflink.common.configuration`: Headrace's configuration with the methods and texts of PyFlink's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import yaml

from headrace.config import Configuration as _Configuration
from headrace.config import Option, Origin, current_key

__all__ = ["Configuration"]


class Configuration(_Configuration):
    """Holds any key; what was set is returned as it was given.

    >>> conf = Configuration().set_integer("k2", 1).set_string("k1", "10000 ms")
    >>> conf.get_string("k1", ""), str(conf)
    ('10000 ms', '{k1=10000 ms, k2=1}')
    """

    def __init__(self, other: _Configuration | Mapping[str, object] | None = None) -> None:
        self._given: dict[str, Any] = {}
        super().__init__(other)

    @classmethod
    def from_dict(cls, map: Mapping[str, str]) -> Self:
        """A configuration of texts."""
        return cls(map)

    @staticmethod
    def parse_list_value(value: str | None) -> list[str]:
        """The elements of a list: YAML, or texts with semicolons between them."""
        if not value:
            return []
        if value.startswith("[") or value.lstrip().startswith("- "):
            return [str(item) for item in yaml.safe_load(value)]
        return value.split(";")

    def set(self, key: str | Option[Any], value: object, origin: Origin = Origin.CODE) -> Self:
        super().set(key, value, origin)
        self._given[current_key(key)] = value
        return self

    set_string = set_integer = set_boolean = set_float = set_bytearray = set  # noqa: A003 - the method above

    def get_bytearray(self, key: str, default_value: bytearray) -> bytearray:
        value = self._given.get(key, default_value)
        return bytearray(value.encode()) if isinstance(value, str) else bytearray(value)

    def add_all(self, other: _Configuration, prefix: str | None = None) -> Self:
        super().add_all(other, prefix or "")
        self._given.update({(prefix or "") + key: value for key, value in getattr(other, "_given", {}).items()})
        return self

    def add_all_to_dict(self, target_dict: dict[str, Any]) -> None:
        """Copy the values as they were given."""
        target_dict.update(super().to_dict())
        target_dict.update(self._given)

    def remove_config(self, key: str | Option[Any]) -> bool:
        self._given.pop(current_key(key), None)
        return super().remove_config(key)

    def to_dict(self) -> dict[str, str]:
        """The values as texts."""
        return {key: self._text_of(key, text) for key, text in super().to_dict().items()}

    def _text_of(self, key: str, text: str) -> str:
        given = self._given.get(key)
        return given if isinstance(given, str) else text

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.to_dict().items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Configuration) and self.to_dict() == other.to_dict()

    def __str__(self) -> str:
        return f"{{{', '.join(f'{key}={text}' for key, text in sorted(self._shown().items()))}}}"
