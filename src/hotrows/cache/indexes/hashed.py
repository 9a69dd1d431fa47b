"""The hash index: memory in proportion to the cache, whatever the number of rows (HECA's hash table, bounded).

Erased cells are marked, and taken again by later rows. They would slow down the search for absent rows little by
little, so the table is built anew before their number can pass half the number of slots: a constant cost per row.
"""

import torch
from torch import Tensor

from hotrows.cache.indexes.base import Index
from hotrows.cache.slots import Slots
from hotrows.ops import row_table
from hotrows.ops.rows import NO_SLOT

CELLS_PER_SLOT = 3


class HashIndex(Index):
    def __init__(self, num_rows: int, slots: Slots) -> None:
        super().__init__(num_rows, slots)
        self._num_cells = CELLS_PER_SLOT * slots.num + 1
        self._keys = torch.empty(self._num_cells + 1, dtype=torch.int64, device=slots.device)
        self._slot_at = torch.empty(self._num_cells + 1, dtype=torch.int32, device=slots.device)
        self._cell_of = torch.empty(slots.num + 1, dtype=torch.int32, device=slots.device)
        self._most_erased = 0
        self.rebuild()

    @staticmethod
    def num_bytes(num_rows: int, num_slots: int) -> int:
        return num_slots * (CELLS_PER_SLOT * (8 + 4) + 4)

    def find(self, rows: Tensor, num: Tensor) -> Tensor:
        cells = row_table.find(self._keys, rows, num)
        return self._slot_at[torch.where(cells < 0, self._num_cells, cells)]

    def replace(self, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
        real = slots >= 0
        nowhere = self.slots.or_nowhere(slots)
        leaves = real & (rows_out >= 0)
        left = torch.where(leaves, self._cell_of[nowhere], self._num_cells)
        self._keys[left] = torch.where(leaves, row_table.ERASED, row_table.BARRED)
        cells = row_table.insert(self._keys, torch.where(real, rows_in, -1), num)
        self._slot_at[torch.where(real, cells, self._num_cells)] = torch.where(real, slots, NO_SLOT)
        self._cell_of[nowhere] = cells.int()

    def maintain(self, most_replaced: int) -> None:
        if self._most_erased > self.slots.num // 2:
            self.rebuild()
        self._most_erased += min(most_replaced, self.slots.num)

    def replaced(self, num: int, most: int) -> None:
        self._most_erased -= min(most, self.slots.num) - num

    def rebuild(self) -> None:
        """Build the table from the slots, without erased cells. Costs as much as the cache is large."""
        self._keys.fill_(row_table.EMPTY)
        self._keys[-1:].fill_(row_table.BARRED)
        self._slot_at.fill_(NO_SLOT)
        rows = self.slots.row[: self.slots.num]
        num = torch.full((1,), self.slots.num, dtype=torch.int32, device=rows.device)
        cells = row_table.insert(self._keys, rows, num)
        slots = torch.arange(self.slots.num, dtype=torch.int32, device=rows.device)
        present = cells >= 0
        self._slot_at[torch.where(present, cells, self._num_cells)] = torch.where(present, slots, NO_SLOT)
        self._cell_of[:-1] = cells.int()
        self._most_erased = 0
        self.generation += 1
