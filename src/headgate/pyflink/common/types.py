"""`pyflink.common.types`."""

from headgate.records.flink_values import MutableRow, RowKind

__all__ = ["Row", "RowKind"]

Row = MutableRow
