"""`pyflink.datastream.utils`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from headrace.records.types import TypeInformation

__all__ = ["ResultTypeQueryable"]


class ResultTypeQueryable(ABC):
    """A function or format that knows the type of its records."""

    @abstractmethod
    def get_produced_type(self) -> TypeInformation:
        """The type."""
