"""The hash index: memory in proportion to the cache, whatever the number of rows (HECA's hash table, bounded).

Erased cells are marked, and taken again by later rows. They would slow down the search for absent rows little by
little, so the table is built anew when they are known to be more than half the number of slots: a constant cost per
row. And before they can be so many that a search might never end, counting what the host does not know yet.
"""

import math

import torch
from torch import Tensor

from hotrows.cache.indexes.base import Index
from hotrows.cache.slots import Slots
from hotrows.ops import hash_table
from hotrows.ops.rows import NO_SLOT
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.runtime.streams import writable_state

CELLS_PER_SLOT = 2.5
MOST_ERASED = 1.25  # per slot: with as many rows as slots, one cell in ten is empty


class HashIndex(Index):
    def __init__(self, num_rows: int, slots: Slots) -> None:
        super().__init__(num_rows, slots)
        self.num_cells = math.ceil(CELLS_PER_SLOT * slots.num) + 1
        self.keys = torch.empty(self.num_cells + 1, dtype=torch.int64, device=slots.device)
        self.slot_at = torch.empty(self.num_cells + 1, dtype=torch.int32, device=slots.device)
        self.cell_of = torch.empty(slots.num + 1, dtype=torch.int32, device=slots.device)
        self._erased = 0  # by plans whose counts are known
        self._most_pending = 0  # by the others, from above
        self.rebuild()

    @staticmethod
    def num_bytes(num_rows: int, num_slots: int) -> int:
        return math.ceil(num_slots * (CELLS_PER_SLOT * (8 + 4) + 4))

    def find(self, rows: Tensor, num: Tensor) -> Tensor:
        cells = hash_table.find(self.keys, rows, num)
        return self.slot_at[torch.where(cells < 0, self.num_cells, cells)]

    def replace(self, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
        real = slots >= 0
        nowhere = self.slots.or_nowhere(slots)
        leaves = real & (rows_out >= 0)
        left = torch.where(leaves, self.cell_of[nowhere], self.num_cells)
        self.keys[left] = torch.where(leaves, hash_table.ERASED, hash_table.BARRED)
        cells = hash_table.insert(self.keys, torch.where(real, rows_in, -1), num)
        self.slot_at[torch.where(real, cells, self.num_cells)] = torch.where(real, slots, NO_SLOT)
        self.cell_of[nowhere] = cells.int()

    def maintain(self, most_replaced: int) -> None:
        num = self.slots.num
        most = most_replaced if most_replaced < num else num  # `min` takes longer
        if self._erased > num // 2 or self._erased + self._most_pending + most > MOST_ERASED * num:
            with defer_sigint(), writable_state():
                self.rebuild()
        self._most_pending += most

    def replaced(self, num: int, most: int) -> None:
        self._most_pending -= most if most < self.slots.num else self.slots.num
        self._erased += num

    def rebuild(self) -> None:
        """Build the table from the slots, without erased cells. Costs as much as the cache is large."""
        hash_table.build(self.keys, self.slot_at, self.cell_of, self.slots.row[: self.slots.num])
        self._erased = self._most_pending = 0
        self.generation += 1
