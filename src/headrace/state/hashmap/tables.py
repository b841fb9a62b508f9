"""Tables of the hashmap backend: one dict per key group, frozen by a snapshot without copying.

Only the subtask's thread changes them; the thread that writes a snapshot reads frozen dicts.

    tables[group]   dict: takes all writes
    below[group]    Layer -> Layer -> ... -> base, all frozen; None while the dict in `tables` is the base itself

Freezing moves each dict one down and puts an empty one on top; what the top does not hold is looked up below. In all but
the base None marks a removed entry; the base never holds None. When no snapshot needs a group any more, its layers are
folded into the base and, unless changes are being tracked, the top too: group by group, a bounded number of entries at
a time.

The dicts are small because Python grows a dict by copying it, which for ten million entries blocks the process for half
a second, and for one of 128 groups for a few milliseconds. They are plain dicts because the garbage collector does not
traverse a dict of numbers and strings, but it would traverse every entry of a subclass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

from headrace.records.copying import ATOMS, copied
from headrace.records.key_groups import KeyGroupRange
from headrace.state.addresses import FOREIGN_TABLE
from headrace.state.tables import DictTable

Table: TypeAlias = dict[Any, Any]


class Cursor:
    """The progress of a snapshot in a state: groups below `at` are no longer needed."""

    def __init__(self, at: int) -> None:
        self.at = at


class Layer:
    """A frozen dict and the layers below it."""

    __slots__ = ("below", "table")

    def __init__(self, table: Table, below: Layer | None) -> None:
        self.table = table
        self.below = below

    def chain(self) -> list[Table]:
        """Return the dicts of this layer and those below, newest first."""
        found, below = [self.table], self.below
        while below is not None:
            found.append(below.table)
            below = below.below
        return found

    def get(self, address: Any) -> Any:
        """Return the entry at an address in this layer and those below; None if there is none."""
        layer: Layer | None = self
        while layer is not None:
            if address in layer.table:
                return layer.table[address]
            layer = layer.below
        return None


class LayerChanges(list[Table]):
    """By group, the dict that a freeze put aside."""

    def size(self) -> int:
        return sum(map(len, self))


class FrozenLayers(list[Any]):
    """By group, the frozen dict, or a layer on others."""

    def changes(self) -> LayerChanges:
        return LayerChanges(one.table if type(one) is Layer else one for one in self)


class StateTable(DictTable):
    """The entries of one state in this subtask's key groups.

    `tables` and `below` are indexed by key group. Handles hold on to `tables`, so it is only ever changed in place:
    they find most entries there, and call `get` for the rest.
    """

    plain = ATOMS - {type(None)}
    copy = staticmethod(copied)

    def __init__(self, groups: KeyGroupRange, max_parallelism: int) -> None:
        self._groups = groups
        self.tables = [{} if group in groups else FOREIGN_TABLE for group in range(max_parallelism)]
        self.below: list[Layer | None] = [None] * max_parallelism
        self.tracking = False
        self.cursors: list[Cursor] = []
        self._merging = self._waiting = False
        self._settled = 0
        self._position = groups.start
        self._folding: dict[int, Iterator[tuple[Any, Any]]] = {}

    # --- entries ---

    def get(self, group: int, address: Any) -> Any:
        table, below = self.tables[group], self.below[group]
        if below is None or address in table:
            return table.get(address)
        return below.get(address)

    def remove(self, group: int, address: Any) -> None:
        """Remove an entry; it is marked as removed if a layer below holds it."""
        below = self.below[group]
        if below is None or below.get(address) is None:
            self.tables[group].pop(address, None)
        else:
            self.tables[group][address] = None

    def get_owned(self, group: int, address: Any) -> Any:
        """Return the stored object; a copy if it is in a layer below, which a snapshot may read."""
        table = self.tables[group]
        return table[address] if address in table else copied(self.get(group, address))

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        pairs = zip(addresses, groups, strict=True)
        if self.layered:
            return [self.get(group, address) for address, group in pairs]
        tables = self.tables
        return [tables[group].get(address) for address, group in pairs]

    def load(self, entries: Iterable[tuple[Any, Any]], group: int) -> None:
        """Add restored entries of one group; None removes."""
        table = self.tables[group]
        for address, stored in entries:
            if stored is None:
                table.pop(address, None)
            else:
                table[address] = stored

    def clear(self) -> None:
        for group in self._groups:
            self.tables[group] = {}
            self.below[group] = None
        self._folding.clear()

    # --- freezing ---

    def track(self) -> None:
        """Keep later changes apart from the present content."""
        self.tracking = True
        for group in self._groups:
            if self.tables[group] or self.below[group] is None:
                self._push(group)

    def _push(self, group: int) -> Layer:
        frozen = self.below[group] = Layer(self.tables[group], self.below[group])
        self.tables[group] = {}
        return frozen

    def freeze(self) -> tuple[FrozenLayers, Cursor]:
        """Return the present content, which no later write changes until the cursor is released."""
        frozen = FrozenLayers(self.tables)
        for group in self._groups:
            layer = self._push(group)
            if layer.below is not None:
                frozen[group] = layer
        cursor = Cursor(self._groups.start)
        self.cursors.append(cursor)
        self._merge_again()
        return frozen, cursor

    def release(self, cursor: Cursor) -> None:
        if cursor in self.cursors:
            self.cursors.remove(cursor)
            self._merge_again()

    def stop_tracking(self) -> None:
        self.tracking = False
        self._merge_again()

    # --- merging back ---

    def merge(self, budget: int) -> int:
        """Fold what freezing left behind, at most about `budget` entries; the rest of the budget (0: more to do)."""
        if not self._merging:
            return budget
        # A round may take several calls; groups that a snapshot still reads are left for a later round.
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
            budget -= 1  # checking a group is work too
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
            # The history of changes may still hold the dict of the layer.
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
        """Return the addresses of all entries of a group, as a new list."""
        below = self.below[group]
        top = self.tables[group] if below is None else Layer(self.tables[group], below)
        return [address for address, _ in view(top)]

    def items(self) -> Iterator[tuple[int, Any, Any]]:
        for group in self._groups:
            for address in self.addresses(group):
                yield group, address, self.get(group, address)

    @property
    def layered(self) -> bool:
        """Return True if any group may have layers below."""
        return self._merging or self.tracking

    def base_size(self) -> int:
        """Return the number of entries without counting exactly."""
        pairs = ((self.tables[group], self.below[group]) for group in self._groups)
        return sum(len(table if below is None else below.chain()[-1]) for table, below in pairs)


def view(frozen: Table | Layer) -> Iterator[tuple[Any, Any]]:
    """Return the entries of a frozen dict, or of a layer and those below it."""
    if not isinstance(frozen, Layer):
        return iter(frozen.items())
    return (entry for entry in newest_entries(frozen.chain()) if entry[1] is not None)


def newest_entries(layers: list[Table]) -> Iterator[tuple[Any, Any]]:
    """Yield the newest entry of each address in layers, which come newest first; None is a removal."""
    for depth, layer in enumerate(layers):
        newer = layers[:depth]
        for address, stored in layer.items():
            if not newer or not any(address in other for other in newer):
                yield address, stored
