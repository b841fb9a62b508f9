"""`pyflink.common.types`."""

from headgate.records.types import Row

__all__ = ["Row"]
