"""The direct index: a slot number for every row there is, 4 bytes each."""

import torch
from torch import Tensor

from hotrows.cache.indexes.base import Index
from hotrows.cache.slots import Slots
from hotrows.ops.rows import NO_SLOT


class DirectIndex(Index):
    def __init__(self, num_rows: int, slots: Slots) -> None:
        super().__init__(num_rows, slots)
        # the place beyond the last row is always absent
        self.slot_of = torch.full((num_rows + 1,), NO_SLOT, dtype=torch.int32, device=slots.device)
        self._nowhere = num_rows

    @staticmethod
    def num_bytes(num_rows: int, num_slots: int) -> int:
        return 4 * num_rows

    def find(self, rows: Tensor, num: Tensor) -> Tensor:
        return self.slot_of[torch.where(rows < 0, self._nowhere, rows)]

    def replace(self, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
        real = slots >= 0
        self.slot_of.index_fill_(0, torch.where(real & (rows_out >= 0), rows_out, self._nowhere), NO_SLOT)
        self.slot_of[torch.where(real, rows_in, self._nowhere)] = torch.where(real, slots, NO_SLOT)
