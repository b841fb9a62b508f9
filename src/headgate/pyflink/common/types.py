"""`pyflink.common.types`."""

from headgate.types import Row

__all__ = ["Row"]
