"""Tables of the hashmap backend: one dict per key group, frozen by a snapshot without copying.

    tables[group]:   Overlay  ->  Overlay  ->  dict
                     writes       frozen       base

A state starts with plain dicts. Freezing puts an empty overlay on top of each: it takes all writes, and what it does
not hold is looked up below (`__missing__`, so a hit costs nothing extra). In an overlay None marks a removed entry; the
base never holds None. When no snapshot needs a group any more, its frozen overlays are folded into the base and, unless
changes are being tracked, the topmost too: group by group, a bounded number of entries at a time.

Small dicts are the point: Python grows a dict by copying it, which for ten million entries stops the world for half a
second, and for one of 128 groups for a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

from headgate.errors import IllegalState
from headgate.keygroups import KeyGroupRange

__all__ = ["Cursor", "Overlay", "StateTable", "Table", "remove_from", "view"]

Table: TypeAlias = dict[Any, Any]


class Overlay(Table):
    """Writes on top of tables that must not change; None marks a removed entry."""

    __slots__ = ("below",)

    def __init__(self, below: Table) -> None:
        super().__init__()
        self.below = below

    def __missing__(self, address: Any) -> Any:
        below = self.below
        while type(below) is Overlay:
            if address in below:
                return dict.__getitem__(below, address)
            below = below.below
        return below.get(address)

    def discard(self, address: Any) -> None:
        """Remove an entry: marked if something below would show through, else simply dropped."""
        if self.__missing__(address) is None:
            self.pop(address, None)
        else:
            self[address] = None


class _ForeignGroup(Table):
    """Stands for the key groups of other subtasks: state written there would be lost, so it is refused."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> Any:
        raise IllegalState(
            "state was used for a key group that another subtask owns: the key of a record must be the same "
            "on both sides of key_by()"
        )

    __getitem__ = __setitem__ = get = pop = __contains__ = _refuse


_FOREIGN = _ForeignGroup()


class Cursor:
    """How far a snapshot has come in a state: groups below `at` are no longer needed."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


def remove_from(table: Table, address: Any) -> None:
    """Remove an entry from the topmost table of a group."""
    if type(table) is Overlay:
        table.discard(address)
    else:
        table.pop(address, None)


class StateTable:
    """The entries of one state in this subtask's key groups.

    `tables` is indexed by key group. Handles keep that list for good, so it is only ever changed in place.
    """

    __slots__ = (
        "_folding",
        "_groups",
        "_merging",
        "_position",
        "_settled",
        "_waiting",
        "cursors",
        "tables",
        "tracking",
    )

    def __init__(self, groups: KeyGroupRange, max_parallelism: int) -> None:
        self._groups = groups
        self.tables: list[Table] = [{} if group in groups else _FOREIGN for group in range(max_parallelism)]
        self.tracking = False
        self.cursors: list[Cursor] = []
        self._merging = self._waiting = False
        self._settled = 0
        self._position = groups.start
        self._folding: dict[int, Iterator[tuple[Any, Any]]] = {}

    def track(self) -> None:
        """Keep changes from now on apart in overlays."""
        self.tracking = True
        for group in self._groups:
            self.tables[group] = Overlay(self.tables[group])

    def freeze(self) -> tuple[list[Table], Cursor]:
        """Let nothing change the present content; the frozen tables by group, and the cursor that holds them."""
        frozen = self.tables.copy()
        for group in self._groups:
            self.tables[group] = Overlay(frozen[group])
        cursor = Cursor(self._groups.start)
        self.cursors.append(cursor)
        self._merge_again()
        return frozen, cursor

    def release(self, cursor: Cursor) -> None:
        """A snapshot is done with this state."""
        if cursor in self.cursors:
            self.cursors.remove(cursor)
            self._merge_again()

    def changes_in(self, frozen: Any) -> Any:
        """By group, what changed between the freeze that gave `frozen` and the one before."""
        return frozen  # the frozen overlays themselves

    def get(self, group: int, address: Any) -> Any:
        """The value at one address, or None."""
        table = self.tables[group]
        return table[address] if type(table) is Overlay else table.get(address)

    def load(self, entries: Iterable[tuple[Any, Any]], group: int) -> None:
        """Take over entries of one group; None removes."""
        table = self.tables[group]
        for address, stored in entries:
            if stored is None:
                table.pop(address, None)
            else:
                table[address] = stored

    def clear(self) -> None:
        """Drop everything."""
        for group in self._groups:
            self.tables[group] = {}

    def stop_tracking(self) -> None:
        """Changes need not be kept apart any more."""
        self.tracking = False
        self._merge_again()

    # --- merging back ---

    def merge(self, budget: int) -> int:
        """Fold overlays back, at most about `budget` entries; what is left of the budget (0: more to do)."""
        if not self._merging:
            return budget
        # A round may take several calls; what a snapshot still holds is left for a later round.
        while self._settled < len(self._groups):
            if budget <= 0:
                return 0
            group = self._position
            if any(cursor.at <= group for cursor in self.cursors):
                self._waiting = True
            else:
                budget = self._merge_group(group, budget)
                if budget <= 0:
                    return 0
            budget -= 1  # a look is work too
            self._settled += 1
            self._position = group + 1 if group < self._groups.end else self._groups.start
        self._merging, self._settled, self._waiting = self._waiting, 0, False
        return budget

    def _merge_again(self) -> None:
        self._merging, self._settled = True, 0

    def _merge_group(self, group: int, budget: int) -> int:
        top = self.tables[group]
        while type(top) is Overlay and type(top.below) is Overlay and budget > 0:
            budget = self._fold_lowest(group, top, budget)
        if type(top) is Overlay and type(top.below) is not Overlay and not self.tracking:
            budget = self._fold_top(group, top, budget)
        return budget

    def _fold_lowest(self, group: int, top: Overlay, budget: int) -> int:
        """Fold the lowest frozen overlay, which hides the base until it is done, so stopping half-way is safe."""
        upper = top
        lowest = top.below
        assert isinstance(lowest, Overlay)
        while type(lowest.below) is Overlay:
            upper, lowest = lowest, lowest.below
        base = lowest.below
        entries = self._folding.get(group)
        if entries is None:
            entries = self._folding[group] = iter(lowest.items())
        for address, stored in islice(entries, budget):
            budget -= 1
            if stored is None:
                base.pop(address, None)
            else:
                base[address] = stored
        if budget > 0:
            del self._folding[group]
            upper.below = base
        return budget

    def _fold_top(self, group: int, top: Overlay, budget: int) -> int:
        """Move entries of the overlay that takes writes down one by one; the last one makes the base the top."""
        base = top.below
        while top and budget > 0:
            address, stored = top.popitem()
            budget -= 1
            if stored is None:
                base.pop(address, None)
            else:
                base[address] = stored
        if not top:
            self.tables[group] = base
        return budget

    # --- reading ---

    def addresses(self, group: int) -> list[Any]:
        """The addresses of all entries of a group, as a list of its own."""
        return [address for address, _ in view(self.tables[group])]

    def __len__(self) -> int:
        return sum(_count(self.tables[group]) for group in self._groups)

    @property
    def layered(self) -> bool:
        """Whether any group may have an overlay."""
        return self._merging or self.tracking

    def base_size(self) -> int:
        """How many entries the lowest tables hold."""
        return sum(len(_bottom(self.tables[group])) for group in self._groups)

    def top_size(self) -> int:
        """How many entries the topmost overlays hold."""
        return sum(len(table) for table in self.tables if type(table) is Overlay)


def view(table: Table) -> Iterator[tuple[Any, Any]]:
    """The entries that a frozen table and what lies below it show."""
    if type(table) is not Overlay:
        return iter(table.items())
    return _layered(table)


def _layered(table: Overlay) -> Iterator[tuple[Any, Any]]:
    layers: list[Table] = [table]
    while type(table.below) is Overlay:
        table = table.below
        layers.append(table)
    layers.append(table.below)
    for depth, layer in enumerate(layers):
        above = layers[:depth]
        for address, stored in layer.items():
            if stored is not None and not any(address in other for other in above):
                yield address, stored


def _bottom(table: Table) -> Table:
    while isinstance(table, Overlay):
        table = table.below
    return table


def _count(table: Table) -> int:
    layers: list[Overlay] = []
    while isinstance(table, Overlay):
        layers.append(table)
        table = table.below
    seen: set[Any] = set()
    change = 0
    for layer in layers:
        for address, stored in layer.items():
            if address not in seen:
                seen.add(address)
                change += (stored is not None) - (address in table)
    return len(table) + change
