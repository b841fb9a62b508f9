"""`pyflink.common.input_dependency_constraint`."""

from enum import Enum

__all__ = ["InputDependencyConstraint"]


class InputDependencyConstraint(Enum):
    """When a task of Flink was scheduled; here all tasks of a job run at the same time."""

    ANY = 0
    ALL = 1
