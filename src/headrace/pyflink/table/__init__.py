"""`pyflink.table`: the types that formats of the DataStream API take. Any other name of it says what to use."""

from __future__ import annotations

from typing import NoReturn

from headrace.errors import InvalidArgument
from headrace.pyflink.table.types import DataTypes as DataTypes

__all__ = ["DataTypes"]


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise InvalidArgument(
        "HR-8002",
        f"pyflink.table.{name}: Headrace has no Table API; use Spark's DataFrames and SQL: env.from_dataframe(df) reads one, "
        "stream.foreach_epoch(function) gives each checkpoint's records as one",
    )
