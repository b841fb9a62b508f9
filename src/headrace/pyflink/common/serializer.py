"""`pyflink.common.serializer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from io import BytesIO
from typing import Generic, TypeVar

__all__ = ["TypeSerializer"]

T = TypeVar("T")


class TypeSerializer(ABC, Generic[T]):
    """Writes and reads values; a custom window assigner of PyFlink names one for its windows."""

    @abstractmethod
    def serialize(self, element: T, stream: BytesIO) -> None: ...

    @abstractmethod
    def deserialize(self, stream: BytesIO) -> T: ...
