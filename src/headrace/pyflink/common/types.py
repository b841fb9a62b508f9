"""`pyflink.common.types`."""

from headrace.records.flink_values import MutableRow, RowKind

__all__ = ["Row", "RowKind"]

Row = MutableRow
