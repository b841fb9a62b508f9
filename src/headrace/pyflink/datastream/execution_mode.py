"""`pyflink.datastream.execution_mode`."""

from enum import Enum

__all__ = ["RuntimeExecutionMode"]


class RuntimeExecutionMode(Enum):
    """The runtime mode of PyFlink; Headrace streams."""

    STREAMING = 0
    BATCH = 1
    AUTOMATIC = 2
