"""`pyflink.common.input_dependency_constraint`."""

from enum import Enum

__all__ = ["InputDependencyConstraint"]


class InputDependencyConstraint(Enum):
    """The scheduling constraint of a Flink task; here all tasks of a job run at the same time."""

    ANY = 0
    ALL = 1
