"""Names of side outputs."""

from __future__ import annotations

from headgate.errors import InvalidArgument
from headgate.records.types import TypeInformation, as_type

__all__ = ["OutputTag"]


class OutputTag:
    """Names a side output: `yield tag, value` in a process function, `stream.get_side_output(tag)` to read it.

    >>> OutputTag("late", "word string")
    OutputTag('late')
    """

    __slots__ = ("name", "type")

    def __init__(self, tag_id: str, type_info: object = None) -> None:
        if not tag_id:
            raise InvalidArgument("an OutputTag needs a name that is not empty")
        self.name = tag_id
        self.type: TypeInformation = as_type(type_info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"OutputTag({self.name!r})"
