"""What every index can do."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hotrows.cache.planning.victim_scan import ScanRange
from hotrows.cache.slots import Slots
from hotrows.ops.rows import NO_SLOT
from hotrows.ops.select_victims import select_victims


@dataclass(frozen=True)
class IndexKernelSpec:
    """What the planning kernels need of an index.

    The tensors are never replaced, so CUDA graphs may hold their addresses; their contents change.
    """

    kind: Literal["direct", "hash", "set-associative"]  # how the kernels find a row and choose a slot for it
    slot_of: Tensor | None = None  # int32, the slot of each row ("direct") or of the row in each cell ("hash")
    keys: Tensor | None = None  # int64 [cells + 1], the row in each cell ("hash")
    cell_of: Tensor | None = None  # int32 [slots + 1], the cell of each slot's row ("hash")
    num_cells: int = 1  # cells of the hash table, or sets


class Index(ABC):
    """Finds the slot of a row. Only the planner writes it."""

    any_slot = True  # whether a row may take any slot

    def __init__(self, num_rows: int, slots: Slots) -> None:
        self.slots = slots
        self.generation = 0  # how often the index was rebuilt

    @staticmethod
    def round_slots(num_slots: int) -> int:
        """The number of slots asked for, rounded up to a number that this index can have."""
        return num_slots

    @staticmethod
    @abstractmethod
    def num_bytes(num_rows: int, num_slots: int) -> int:
        """Device memory of the index."""

    @abstractmethod
    def find(self, rows: Tensor, num: Tensor) -> Tensor:
        """The slots of int64 [N] rows, int32 [N]; NO_SLOT for rows not in the cache.

        All entries behind the first `num` are NO_ROW, and get NO_SLOT.
        """

    @abstractmethod
    def replace(self, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
        """From now on slots[j] holds rows_in[j] instead of rows_out[j]. Entries with NO_SLOT are ignored."""

    @abstractmethod
    def rebuild(self) -> None:
        """Build the index again from the rows that are in the slots now. The cost is proportional to the slots."""

    def place(self, rows: Tensor, num: Tensor, oldest: int, scan: ScanRange | None = None) -> Tensor:
        """A slot for each of the first `num` absent rows, int32 [N], NO_SLOT for rows that find none.

        Only slots that are not pinned and were last used before plan `oldest` are given, lowest priority first.

        Args:
            scan: the slots to choose from, for an index that gives a row any slot; None for all slots.
        """
        state, end = self.slots, self.slots.num
        if scan is None or scan.length == end:
            return select_victims(state.priority[:end], state.last_used[:end], state.pinned, oldest, num, rows.numel())
        scanned = (torch.arange(scan.length, device=state.device) + scan.start) % end
        chosen = select_victims(
            state.priority[scanned], state.last_used[scanned], state.pinned[scanned], oldest, num, rows.numel()
        )
        return torch.where(chosen >= 0, scanned[chosen.clamp(min=0)], NO_SLOT).int()

    def maintain(self, max_evictions: int) -> None:
        """Called before each plan, with an upper bound on the rows that it evicts."""

    def note_evictions(self, num: int, max_evictions: int) -> None:
        """The host has read back how many rows a plan of this generation evicted.

        Args:
            max_evictions: the upper bound that `maintain` was called with.
        """

    def kernel_spec(self) -> IndexKernelSpec | None:
        """What the planning kernels need of this index; None if they do not know it."""
        return None
