"""The slots of a cache: which row is in each, who used it last, who is pinned, and its priority."""

import torch
from torch import Tensor

from hotrows.ops.rows import NO_ROW

NEVER = -1
LOWEST = torch.iinfo(torch.int32).min


class Slots:
    """State of S slots. The arrays have one place more, where writes that must not happen go, so that a whole batch
    can be written without asking the host which of it is real."""

    def __init__(self, num: int, device: torch.device) -> None:
        self.num = num
        self.device = device
        self.row = torch.full((num + 1,), NO_ROW, dtype=torch.int64, device=device)
        self.last_used = torch.full((num + 1,), NEVER, dtype=torch.int32, device=device)
        self.priority = torch.full((num + 1,), LOWEST, dtype=torch.int32, device=device)
        self.pinned = torch.zeros(num, dtype=torch.bool, device=device)

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in (self.row, self.last_used, self.priority, self.pinned))

    def or_nowhere(self, slots: Tensor, mask: Tensor | None = None) -> Tensor:
        """int64 slots to write to, the place beyond the last for those that are NO_SLOT or masked out."""
        real = slots >= 0 if mask is None else mask & (slots >= 0)
        return torch.where(real, slots, self.num).long()
