"""Tables of the hashmap backend: one dict per key group, frozen by a snapshot without copying.

    tables[group]   dict: takes all writes
    below[group]    Layer -> Layer -> ... -> base, all frozen; None while the dict in `tables` is the base itself

Freezing moves each dict one down and puts an empty one on top; what the top does not hold is looked up below. In all but
the base None marks a removed entry; the base never holds None. When no snapshot needs a group any more, its layers are
folded into the base and, unless changes are being tracked, the top too: group by group, a bounded number of entries at
a time.

Small dicts are the point: Python grows a dict by copying it, which for ten million entries stops the world for half a
second, and for one of 128 groups for a few milliseconds. Plain dicts are the other point: the garbage collector does not
look into a dict of numbers and strings, but it would look into every entry of a subclass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

from headgate.errors import IllegalState
from headgate.records.key_groups import KeyGroupRange

__all__ = ["FOREIGN_GROUP", "FOREIGN_TABLE", "Cursor", "Layer", "StateTable", "Table", "view"]

FOREIGN_GROUP = (
    "state was used for a key group that another subtask owns: the key of a record must be the same "
    "on both sides of key_by()"
)
Table: TypeAlias = dict[Any, Any]


class Layer:
    """A frozen dict and what lies below it."""

    __slots__ = ("below", "table")

    def __init__(self, table: Table, below: Layer | None) -> None:
        self.table = table
        self.below = below

    def get(self, address: Any) -> Any:
        """What this layer and those below show at an address; None if nothing."""
        layer: Layer | None = self
        while layer is not None:
            if address in layer.table:
                return layer.table[address]
            layer = layer.below
        return None


class _ForeignGroup(Table):
    """Stands for the key groups of other subtasks: state written there would be lost, so it is refused."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> Any:
        raise IllegalState(FOREIGN_GROUP)

    __getitem__ = __setitem__ = get = pop = __contains__ = _refuse


FOREIGN_TABLE = _ForeignGroup()


class Cursor:
    """How far a snapshot has come in a state: groups below `at` are no longer needed."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


class StateTable:
    """The entries of one state in this subtask's key groups.

    `tables` and `below` are indexed by key group. Handles keep `tables` for good, so it is only ever changed in place:
    they find most entries there, and ask `get` for the rest.
    """

    __slots__ = (
        "_folding",
        "_groups",
        "_merging",
        "_position",
        "_settled",
        "_waiting",
        "below",
        "cursors",
        "tables",
        "tracking",
    )

    def __init__(self, groups: KeyGroupRange, max_parallelism: int) -> None:
        self._groups = groups
        self.tables: list[Table] = [{} if group in groups else FOREIGN_TABLE for group in range(max_parallelism)]
        self.below: list[Layer | None] = [None] * max_parallelism
        self.tracking = False
        self.cursors: list[Cursor] = []
        self._merging = self._waiting = False
        self._settled = 0
        self._position = groups.start
        self._folding: dict[int, Iterator[tuple[Any, Any]]] = {}

    # --- entries ---

    def get(self, group: int, address: Any) -> Any:
        """The value at one address, or None."""
        table, below = self.tables[group], self.below[group]
        if below is None or address in table:
            return table.get(address)
        return below.get(address)

    def put(self, group: int, address: Any, stored: Any) -> None:
        """Store at one address; never None."""
        self.tables[group][address] = stored

    def remove(self, group: int, address: Any) -> None:
        """Remove an entry: marked if something below would show through, else simply dropped."""
        below = self.below[group]
        if below is None or below.get(address) is None:
            self.tables[group].pop(address, None)
        else:
            self.tables[group][address] = None

    def is_own(self, group: int, address: Any) -> bool:
        """Whether what is stored lies on top, so that no snapshot can see it and it may be changed in place."""
        return self.below[group] is None or address in self.tables[group]

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
            self.below[group] = None
        self._folding.clear()

    # --- freezing ---

    def track(self) -> None:
        """Keep changes from now on apart from what is there."""
        self.tracking = True
        for group in self._groups:
            self._push(group)

    def _push(self, group: int) -> Layer:
        frozen = self.below[group] = Layer(self.tables[group], self.below[group])
        self.tables[group] = {}
        return frozen

    def freeze(self) -> tuple[list[Any], Cursor]:
        """Let nothing change the present content.

        Gives the frozen content by group (a dict, or a layer on others) and the cursor that holds it.
        """
        frozen: list[Any] = list(self.tables)
        for group in self._groups:
            layer = self._push(group)
            if layer.below is not None:
                frozen[group] = layer
        cursor = Cursor(self._groups.start)
        self.cursors.append(cursor)
        self._merge_again()
        return frozen, cursor

    def changes_in(self, frozen: Any) -> Any:
        """By group, what changed between the freeze that gave `frozen` and the one before."""
        return [one.table if type(one) is Layer else one for one in frozen]

    def release(self, cursor: Cursor) -> None:
        """A snapshot is done with this state."""
        if cursor in self.cursors:
            self.cursors.remove(cursor)
            self._merge_again()

    def stop_tracking(self) -> None:
        """Changes need not be kept apart any more."""
        self.tracking = False
        self._merge_again()

    # --- merging back ---

    def merge(self, budget: int) -> int:
        """Fold layers back, at most about `budget` entries; what is left of the budget (0: more to do)."""
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
        while (top := self.below[group]) is not None and top.below is not None and budget > 0:
            budget = self._fold_lowest(group, top, budget)
        if top is not None and top.below is None and not self.tracking:
            budget = self._fold_top(group, top.table, budget)
        return budget

    def _fold_lowest(self, group: int, top: Layer, budget: int) -> int:
        """Fold the layer above the base, which hides the base until it is done, so stopping half-way is safe."""
        above, layer, base = None, top, top.below
        assert base is not None
        while base.below is not None:
            above, layer, base = layer, base, base.below
        entries = self._folding.get(group)
        if entries is None:
            entries = self._folding[group] = iter(layer.table.items())
        for address, stored in islice(entries, budget):
            budget -= 1
            if stored is None:
                base.table.pop(address, None)
            else:
                base.table[address] = stored
        if budget > 0:
            # The dict of the layer lives on where changes are remembered.
            del self._folding[group]
            if above is None:
                self.below[group] = base
            else:
                above.below = base
        return budget

    def _fold_top(self, group: int, base: Table, budget: int) -> int:
        """Move entries of the dict that takes writes down one by one; the last one makes the base the top."""
        top = self.tables[group]
        while top and budget > 0:
            address, stored = top.popitem()
            budget -= 1
            if stored is None:
                base.pop(address, None)
            else:
                base[address] = stored
        if not top:
            self.tables[group] = base
            self.below[group] = None
        return budget

    # --- sizes ---

    def addresses(self, group: int) -> list[Any]:
        """The addresses of all entries of a group, as a list of its own."""
        below = self.below[group]
        return [
            address for address, _ in view(self.tables[group] if below is None else Layer(self.tables[group], below))
        ]

    def __len__(self) -> int:
        return sum(_count(self.tables[group], self.below[group]) for group in self._groups)

    @property
    def layered(self) -> bool:
        """Whether any group may have layers below."""
        return self._merging or self.tracking

    def base_size(self) -> int:
        """How many entries the lowest dicts hold."""
        return sum(len(_base(self.tables[group], self.below[group])) for group in self._groups)


def view(frozen: Table | Layer) -> Iterator[tuple[Any, Any]]:
    """The entries that a frozen dict, or a layer and those below it, show."""
    if not isinstance(frozen, Layer):
        return iter(frozen.items())
    return _layered(frozen)


def _layered(top: Layer) -> Iterator[tuple[Any, Any]]:
    above: list[Table] = []
    layer: Layer | None = top
    while layer is not None:
        for address, stored in layer.table.items():
            if stored is not None and not any(address in other for other in above):
                yield address, stored
        above.append(layer.table)
        layer = layer.below


def _base(table: Table, below: Layer | None) -> Table:
    while below is not None:
        table, below = below.table, below.below
    return table


def _count(table: Table, below: Layer | None) -> int:
    base = _base(table, below)
    seen: set[Any] = set()
    change = 0
    while below is not None:
        for address, stored in table.items():
            if address not in seen:
                seen.add(address)
                change += (stored is not None) - (address in base)
        table, below = below.table, below.below
    return len(base) + change
