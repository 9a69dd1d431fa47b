"""The set-associative index: a row may take one of a few slots, so the index needs no memory of its own (cDLRM)."""

import torch
from torch import Tensor

from hotrows.cache.indexes.base import Index, IndexKernelSpec
from hotrows.cache.planning.victim_scan import ScanRange
from hotrows.cache.slots import Slots
from hotrows.ops.rows import NO_SLOT

WAYS = 16
MAX_PRIORITY = torch.iinfo(torch.int32).max


class SetAssociativeIndex(Index):
    """Slots in sets of 16 ways. Row r belongs to set r mod the number of sets."""

    any_slot = False

    def __init__(self, num_rows: int, slots: Slots) -> None:
        super().__init__(num_rows, slots)
        assert slots.num % WAYS == 0
        self._num_sets = slots.num // WAYS
        self._way = torch.arange(WAYS, device=slots.device)

    @staticmethod
    def round_slots(num_slots: int) -> int:
        return -(-num_slots // WAYS) * WAYS

    @staticmethod
    def num_bytes(num_rows: int, num_slots: int) -> int:
        return 0

    def find(self, rows: Tensor, num: Tensor) -> Tensor:
        ways = self._slots_of_set(rows % self._num_sets)
        same = (self.slots.row[ways] == rows.unsqueeze(1)) & (rows >= 0).unsqueeze(1)
        return torch.where(same, ways, NO_SLOT).amax(1).int()

    def place(self, rows: Tensor, num: Tensor, oldest: int, scan: ScanRange | None = None) -> Tensor:
        """The k-th absent row of a set takes the k-th way that may be evicted, in the order of (priority, way)."""
        if rows.numel() == 0:
            return rows.int()
        position = torch.arange(rows.numel(), device=rows.device)
        wanted = position < num
        # A stable sort brings the rows of one set together and keeps their order.
        set_of, order = torch.sort(torch.where(wanted, rows % self._num_sets, self._num_sets), stable=True)
        first = torch.ones_like(set_of, dtype=torch.bool)
        first[1:] = set_of[1:] != set_of[:-1]
        rank = position - torch.cummax(torch.where(first, position, 0), 0).values

        state = self.slots
        real = set_of < self._num_sets
        ways = self._slots_of_set(torch.where(real, set_of, 0))
        evictable = (state.last_used[ways] < oldest) & ~state.pinned[ways]
        priority = torch.where(evictable, state.priority[ways].long(), MAX_PRIORITY + 1)
        priority, best = torch.sort(priority, dim=1, stable=True)
        mine = rank.clamp(max=WAYS - 1).unsqueeze(1)
        slot = ways.gather(1, best.gather(1, mine)).squeeze(1)
        possible = real & (rank < WAYS) & (priority.gather(1, mine).squeeze(1) <= MAX_PRIORITY)

        placed = torch.empty(rows.numel(), dtype=torch.int32, device=rows.device)
        placed[order] = torch.where(possible, slot, NO_SLOT).int()
        return placed

    def replace(self, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
        pass  # `find` reads `Slots.row` itself

    def rebuild(self) -> None:
        pass

    def kernel_spec(self) -> IndexKernelSpec:
        return IndexKernelSpec("set-associative", num_cells=self._num_sets)

    def _slots_of_set(self, sets: Tensor) -> Tensor:
        return sets.unsqueeze(1) * WAYS + self._way
