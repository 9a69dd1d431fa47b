"""The hash index: memory proportional to the slots, however many rows there are.

This is HECA's hash table, but it is never full, so every search ends. The cell of an evicted row is marked as erased,
and a later row may take it. Erased cells make searches for absent rows longer. So the table is rebuilt once the host
has counted more evictions since the last rebuild than half the slots. Rebuilding then costs amortized constant time per
eviction. A search ends at an empty cell. So the table is also rebuilt before erased cells could fill it. For plans
whose evictions were not read back yet, the host assumes their upper bound.
"""

import math

import torch
from torch import Tensor

from hotrows.cache.indexes.base import Index, IndexKernelSpec
from hotrows.cache.slots import Slots
from hotrows.ops import hash_table
from hotrows.ops.rows import NO_SLOT
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.runtime.streams import writable_state

CELLS_PER_SLOT = 2.5
MAX_ERASED = 1.25  # erased cells per slot; if every slot has a row too, one cell in ten is still empty


class HashIndex(Index):
    def __init__(self, num_rows: int, slots: Slots) -> None:
        super().__init__(num_rows, slots)
        self.num_cells = math.ceil(CELLS_PER_SLOT * slots.num) + 1
        self.keys = torch.empty(self.num_cells + 1, dtype=torch.int64, device=slots.device)
        self.slot_at = torch.empty(self.num_cells + 1, dtype=torch.int32, device=slots.device)
        self.cell_of = torch.empty(slots.num + 1, dtype=torch.int32, device=slots.device)
        self._erased = 0  # cells erased since the last rebuild by plans whose counts were read back
        self._max_pending = 0  # upper bound on the cells erased by the other plans
        self.rebuild()

    @staticmethod
    def num_bytes(num_rows: int, num_slots: int) -> int:
        return math.ceil(num_slots * (CELLS_PER_SLOT * (8 + 4) + 4))

    def find(self, rows: Tensor, num: Tensor) -> Tensor:
        cells = hash_table.find(self.keys, rows, num)
        return self.slot_at[torch.where(cells < 0, self.num_cells, cells)]

    def replace(self, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
        real = slots >= 0
        target = self.slots.write_targets(slots)
        leaves = real & (rows_out >= 0)
        left = torch.where(leaves, self.cell_of[target], self.num_cells)
        self.keys[left] = torch.where(leaves, hash_table.ERASED, hash_table.BARRED)
        cells = hash_table.insert(self.keys, torch.where(real, rows_in, -1), num)
        self.slot_at[torch.where(real, cells, self.num_cells)] = torch.where(real, slots, NO_SLOT)
        self.cell_of[target] = cells.int()

    def maintain(self, max_evictions: int) -> None:
        num = self.slots.num
        most = max_evictions if max_evictions < num else num  # calling `min` takes longer
        if self._erased > num // 2 or self._erased + self._max_pending + most > MAX_ERASED * num:
            with defer_sigint(), writable_state():
                self.rebuild()
        self._max_pending += most

    def note_evictions(self, num: int, max_evictions: int) -> None:
        self._max_pending -= max_evictions if max_evictions < self.slots.num else self.slots.num
        self._erased += num

    def rebuild(self) -> None:
        """Build the table from the slots, without erased cells. The cost is proportional to the number of slots."""
        hash_table.build(self.keys, self.slot_at, self.cell_of, self.slots.row[: self.slots.num])
        self._erased = self._max_pending = 0
        self.generation += 1

    def kernel_spec(self) -> IndexKernelSpec:
        return IndexKernelSpec("hash", self.slot_at, self.keys, self.cell_of, self.num_cells)
