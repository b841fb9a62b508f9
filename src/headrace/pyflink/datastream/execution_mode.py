"""`pyflink.datastream.execution_mode`."""

from enum import Enum

__all__ = ["RuntimeExecutionMode"]


class RuntimeExecutionMode(Enum):
    """How PyFlink runs a program; Headrace streams."""

    STREAMING = 0
    BATCH = 1
    AUTOMATIC = 2
