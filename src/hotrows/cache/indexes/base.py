"""What every index can do."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from hotrows.cache.planning.victim_scan import ScanRange
from hotrows.cache.slots import Slots
from hotrows.ops.rows import NO_SLOT
from hotrows.ops.select_victims import select_victims


class Index(ABC):
    """Finds the slot of a row. Only the planner writes it."""

    any_slot = True  # whether a row may take any slot

    def __init__(self, num_rows: int, slots: Slots) -> None:
        self.slots = slots
        self.generation = 0  # how often it was built anew

    @staticmethod
    def round_slots(num_slots: int) -> int:
        """The number of slots this index makes of the number asked for."""
        return num_slots

    @staticmethod
    @abstractmethod
    def num_bytes(num_rows: int, num_slots: int) -> int:
        """Device memory it takes."""

    @abstractmethod
    def find(self, rows: Tensor, num: Tensor) -> Tensor:
        """Slot of each of the first `num` int64 [N] rows, int32 [N]; NO_SLOT for absent ones and beyond."""

    @abstractmethod
    def replace(self, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
        """Know that slots[j] holds rows_in[j] instead of rows_out[j]; nothing where slots[j] is NO_SLOT."""

    def place(self, rows: Tensor, num: Tensor, oldest: int, scan: ScanRange | None = None) -> Tensor:
        """A slot for each of the first `num` absent rows, int32 [N], NO_SLOT where there is none.

        Only slots that are not pinned and were last used before batch `oldest`, lowest priority first.

        Args:
            scan: the slots to look at, where an index can look at a part of them; None for all.
        """
        state, end = self.slots, self.slots.num
        if scan is None or scan.length == end:
            return select_victims(state.priority[:end], state.last_used[:end], state.pinned, oldest, num, rows.numel())
        part = (torch.arange(scan.length, device=state.device) + scan.start) % end
        chosen = select_victims(
            state.priority[part], state.last_used[part], state.pinned[part], oldest, num, rows.numel()
        )  # fmt: skip
        return torch.where(chosen >= 0, part[chosen.clamp(min=0)], NO_SLOT).int()

    def maintain(self, most_replaced: int) -> None:
        """Called before each plan, with the most rows it can replace."""

    def replaced(self, num: int, most: int) -> None:
        """Called when the host learns how many rows a plan of this generation replaced, of the `most` it could have."""
