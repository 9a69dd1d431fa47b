"""The direct index: an array with the slot of every row there is, 4 bytes per row."""

import torch
from torch import Tensor

from hotrows.cache.indexes.base import Index, IndexKernelSpec
from hotrows.cache.slots import Slots
from hotrows.ops.rows import NO_SLOT


class DirectIndex(Index):
    def __init__(self, num_rows: int, slots: Slots) -> None:
        super().__init__(num_rows, slots)
        # Masked-out writes are redirected to the extra entry behind the last row, which always holds NO_SLOT.
        self.slot_of = torch.full((num_rows + 1,), NO_SLOT, dtype=torch.int32, device=slots.device)
        self._beyond = num_rows

    @staticmethod
    def num_bytes(num_rows: int, num_slots: int) -> int:
        return 4 * num_rows

    def find(self, rows: Tensor, num: Tensor) -> Tensor:
        return self.slot_of[torch.where(rows < 0, self._beyond, rows)]

    def replace(self, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
        real = slots >= 0
        self.slot_of.index_fill_(0, torch.where(real & (rows_out >= 0), rows_out, self._beyond), NO_SLOT)
        self.slot_of[torch.where(real, rows_in, self._beyond)] = torch.where(real, slots, NO_SLOT)

    def rebuild(self) -> None:
        rows = self.slots.row[: self.slots.num]
        self.slot_of.fill_(NO_SLOT)
        slots = torch.arange(self.slots.num, dtype=torch.int32, device=rows.device)
        self.slot_of[torch.where(rows < 0, self._beyond, rows)] = torch.where(rows < 0, NO_SLOT, slots)

    def kernel_spec(self) -> IndexKernelSpec:
        return IndexKernelSpec("direct", slot_of=self.slot_of)
