"""`pyflink.datastream.slot_sharing_group`: resources of Flink's slots. They are hints: Spark's executors size the workers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import total_ordering

from headrace.errors import InvalidArgument

__all__ = ["MemorySize", "SlotSharingGroup"]


@total_ordering
@dataclass(frozen=True)
class MemorySize:
    """A number of bytes.

    >>> MemorySize.of_mebi_bytes(100) <= MemorySize.of_mebi_bytes(200), str(MemorySize.of_mebi_bytes(100))
    (True, '100 mb')
    """

    bytes_size: int

    def __post_init__(self) -> None:
        if self.bytes_size < 0:
            raise InvalidArgument(f"a memory size must not be negative, got {self.bytes_size}")

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> MemorySize:
        return MemorySize(bytes_size=mebi_bytes << 20)

    def get_bytes(self) -> int:
        return self.bytes_size

    def get_kibi_bytes(self) -> int:
        return self.bytes_size >> 10

    def get_mebi_bytes(self) -> int:
        return self.bytes_size >> 20

    def get_gibi_bytes(self) -> int:
        return self.bytes_size >> 30

    def get_tebi_bytes(self) -> int:
        return self.bytes_size >> 40

    def __lt__(self, other: MemorySize) -> bool:
        return self.bytes_size < other.bytes_size

    def __str__(self) -> str:
        for unit, bits in (("tb", 40), ("gb", 30), ("mb", 20), ("kb", 10)):
            if self.bytes_size and self.bytes_size % (1 << bits) == 0:
                return f"{self.bytes_size >> bits} {unit}"
        return f"{self.bytes_size} bytes"


@dataclass(frozen=True)
class SlotSharingGroup:
    """A name for operators that Flink would run in shared slots, with the resources of such a slot."""

    name: str
    cpu_cores: float | None = None
    task_heap_memory: MemorySize | None = None
    task_off_heap_memory: MemorySize | None = None
    managed_memory: MemorySize | None = None
    external_resources: dict[str, float] = field(default_factory=dict, hash=False)

    def get_name(self) -> str:
        return self.name

    def get_cpu_cores(self) -> float | None:
        return self.cpu_cores

    def get_task_heap_memory(self) -> MemorySize | None:
        return self.task_heap_memory

    def get_task_off_heap_memory(self) -> MemorySize | None:
        return self.task_off_heap_memory

    def get_managed_memory(self) -> MemorySize | None:
        return self.managed_memory

    def get_external_resources(self) -> dict[str, float]:
        return dict(self.external_resources)

    @staticmethod
    def builder(name: str) -> SlotSharingGroup.Builder:
        return SlotSharingGroup.Builder(name)

    class Builder:
        """Collects the resources; cores and heap memory are given together."""

        def __init__(self, name: str) -> None:
            self._group = SlotSharingGroup(name)

        def _set(self, **changes: object) -> SlotSharingGroup.Builder:
            self._group = replace(self._group, **changes)  # type: ignore[arg-type]
            return self

        def set_cpu_cores(self, cpu_cores: float) -> SlotSharingGroup.Builder:
            if cpu_cores <= 0:
                raise InvalidArgument(f"set_cpu_cores() needs more than 0, got {cpu_cores}")
            return self._set(cpu_cores=cpu_cores)

        def set_task_heap_memory(self, task_heap_memory: MemorySize) -> SlotSharingGroup.Builder:
            if not task_heap_memory.bytes_size:
                raise InvalidArgument("set_task_heap_memory() needs more than 0 bytes")
            return self._set(task_heap_memory=task_heap_memory)

        def set_task_heap_memory_mb(self, task_heap_memory_mb: int) -> SlotSharingGroup.Builder:
            return self.set_task_heap_memory(MemorySize.of_mebi_bytes(task_heap_memory_mb))

        def set_task_off_heap_memory(self, task_off_heap_memory: MemorySize) -> SlotSharingGroup.Builder:
            return self._set(task_off_heap_memory=task_off_heap_memory)

        def set_task_off_heap_memory_mb(self, task_off_heap_memory_mb: int) -> SlotSharingGroup.Builder:
            return self.set_task_off_heap_memory(MemorySize.of_mebi_bytes(task_off_heap_memory_mb))

        def set_managed_memory(self, managed_memory: MemorySize) -> SlotSharingGroup.Builder:
            return self._set(managed_memory=managed_memory)

        def set_managed_memory_mb(self, managed_memory_mb: int) -> SlotSharingGroup.Builder:
            return self.set_managed_memory(MemorySize.of_mebi_bytes(managed_memory_mb))

        def set_external_resource(self, name: str, value: float) -> SlotSharingGroup.Builder:
            return self._set(external_resources={**self._group.external_resources, name: value})

        def build(self) -> SlotSharingGroup:
            group = self._group
            needed = (group.cpu_cores, group.task_heap_memory)
            others = (group.task_off_heap_memory, group.managed_memory, group.external_resources)
            if None in needed and any([*needed, *others]):
                raise InvalidArgument(
                    f"slot sharing group '{group.name}': give both cpu cores and task heap memory, or no resources"
                )
            return group
