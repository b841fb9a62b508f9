"""`pyflink.datastream.slot_sharing_group`: resources of Flink's slots, which have no effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.errors import InvalidArgument
from headrace.pyflink._without_effect import warn_without_effect

__all__ = ["MemorySize", "SlotSharingGroup"]

_UNITS = {"tb": 40, "gb": 30, "mb": 20, "kb": 10}


def _in_unit(bits: int) -> Callable[[MemorySize], int]:
    return lambda size: size.bytes_size >> bits


@dataclass(frozen=True, order=True)
class MemorySize:
    """A number of bytes.

    >>> MemorySize.of_mebi_bytes(100) <= MemorySize.of_mebi_bytes(200), str(MemorySize.of_mebi_bytes(100))
    (True, '100 mb')
    """

    bytes_size: int

    def __post_init__(self) -> None:
        if self.bytes_size < 0:
            raise InvalidArgument("HR-8005", f"a memory size must not be negative, got {self.bytes_size}")

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> MemorySize:
        return MemorySize(bytes_size=mebi_bytes << 20)

    get_bytes, get_kibi_bytes, get_mebi_bytes = _in_unit(0), _in_unit(10), _in_unit(20)
    get_gibi_bytes, get_tebi_bytes = _in_unit(30), _in_unit(40)

    def __str__(self) -> str:
        fitting = (unit for unit, bits in _UNITS.items() if self.bytes_size and self.bytes_size % (1 << bits) == 0)
        unit = next(fitting, "bytes")
        return f"{self.bytes_size >> _UNITS.get(unit, 0)} {unit}"


def _getter(resource: str) -> Callable[[SlotSharingGroup], Any]:
    return lambda group: group.resources.get(resource)


def _setter(resource: str, made: Callable[[Any], Any] = lambda value: value) -> Callable[..., Any]:
    """Return a method of the builder; PyFlink's one takes one argument, whatever its name."""

    def set_resource(self: SlotSharingGroup.Builder, *args: Any, **kwargs: Any) -> SlotSharingGroup.Builder:
        (value,) = *args, *kwargs.values()
        self.group.resources[resource] = made(value)
        return self

    return set_resource


class SlotSharingGroup:
    """A name for operators that Flink would run in shared slots, with the resources of such a slot."""

    def __init__(self, name: str) -> None:
        warn_without_effect("SlotSharingGroup")
        self.name = name
        self.resources: dict[str, Any] = {}

    def get_name(self) -> str:
        return self.name

    get_cpu_cores = _getter("cpu_cores")
    get_task_heap_memory = _getter("task_heap_memory")
    get_task_off_heap_memory = _getter("task_off_heap_memory")
    get_managed_memory = _getter("managed_memory")

    def get_external_resources(self) -> dict[str, float]:
        return dict(self.resources.get("external", {}))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SlotSharingGroup) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.name)

    @staticmethod
    def builder(name: str) -> SlotSharingGroup.Builder:
        return SlotSharingGroup.Builder(name)

    class Builder:
        """Collects the resources; cores and heap memory are given together."""

        def __init__(self, name: str) -> None:
            self.group = SlotSharingGroup(name)

        set_cpu_cores = _setter("cpu_cores")
        set_task_heap_memory = _setter("task_heap_memory")
        set_task_heap_memory_mb = _setter("task_heap_memory", MemorySize.of_mebi_bytes)
        set_task_off_heap_memory = _setter("task_off_heap_memory")
        set_task_off_heap_memory_mb = _setter("task_off_heap_memory", MemorySize.of_mebi_bytes)
        set_managed_memory = _setter("managed_memory")
        set_managed_memory_mb = _setter("managed_memory", MemorySize.of_mebi_bytes)

        def set_external_resource(self, name: str, value: float) -> SlotSharingGroup.Builder:
            self.group.resources.setdefault("external", {})[name] = value
            return self

        def build(self) -> SlotSharingGroup:
            given = self.group.resources
            heap = given.get("task_heap_memory", MemorySize(0))
            if given and not (given.get("cpu_cores", 0) > 0 and heap.bytes_size):
                raise InvalidArgument(
                    "HR-8005",
                    f"slot sharing group '{self.group.name}': give both cpu cores and task heap memory, or no resources",
                )
            return self.group
