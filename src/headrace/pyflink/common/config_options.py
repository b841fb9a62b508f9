"""`pyflink.common.config_options`: options that a program makes for itself."""

from __future__ import annotations

from typing import Any

from headrace.config import Option, OptionKind

__all__ = ["ConfigOption", "ConfigOptions"]

ConfigOption = Option


class ConfigOptions:
    """Makes options.

    >>> from headrace.pyflink.common import Configuration
    >>> retries = ConfigOptions.key("user.retries").int_type().default_value(3)
    >>> Configuration().get_integer(retries.key, retries.default)
    3
    """

    def __init__(self, key: str) -> None:
        self._key = key

    @staticmethod
    def key(key: str) -> ConfigOptions.OptionBuilder:
        return ConfigOptions.OptionBuilder(key)

    class OptionBuilder:
        """Asks for the type."""

        def __init__(self, key: str) -> None:
            self._key = key

        def boolean_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            return ConfigOptions.TypedConfigOptionBuilder(self._key, OptionKind.BOOL)

        def int_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            return ConfigOptions.TypedConfigOptionBuilder(self._key, OptionKind.INT)

        def long_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            return self.int_type()

        def float_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            return ConfigOptions.TypedConfigOptionBuilder(self._key, OptionKind.FLOAT)

        def double_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            return self.float_type()

        def string_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            return ConfigOptions.TypedConfigOptionBuilder(self._key, OptionKind.STRING)

    class TypedConfigOptionBuilder:
        """Asks for the default."""

        def __init__(self, key: str, kind: OptionKind) -> None:
            self._key, self._kind = key, kind

        def default_value(self, value: Any) -> ConfigOption[Any]:
            return ConfigOption(self._key, self._kind, value, "")

        def no_default_value(self) -> ConfigOption[Any]:
            return ConfigOption(self._key, self._kind, None, "")
