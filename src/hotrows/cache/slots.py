"""The slots of a cache: the row in each of them, the last plan that uses it, whether it is pinned, its priority."""

import torch
from torch import Tensor

from hotrows.ops.rows import NO_ROW

NEVER = -1
LOWEST = torch.iinfo(torch.int32).min
BYTES_PER_SLOT = 8 + 4 + 4 + 1


class Slots:
    """State of S slots.

    The arrays that plans write have one entry more than there are slots. Masked-out writes are redirected to this extra
    entry, so a whole batch is written with one scatter, although only the device knows which of its entries are real.
    """

    def __init__(self, num: int, device: torch.device) -> None:
        self.num = num
        self.device = device
        self.row = torch.full((num + 1,), NO_ROW, dtype=torch.int64, device=device)
        self.last_used = torch.full((num + 1,), NEVER, dtype=torch.int32, device=device)
        self.priority = torch.full((num + 1,), LOWEST, dtype=torch.int32, device=device)
        self.pinned = torch.zeros(num, dtype=torch.bool, device=device)

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in (self.row, self.last_used, self.priority, self.pinned))

    def write_targets(self, slots: Tensor, mask: Tensor | None = None) -> Tensor:
        """The indices to write to, int64: each slot, or `num` (the extra entry) where it is NO_SLOT or masked out."""
        real = slots >= 0 if mask is None else mask & (slots >= 0)
        return torch.where(real, slots, self.num).long()

    def clear(self) -> None:
        """Make every slot as if it had never been used."""
        self.row.fill_(NO_ROW)
        self.last_used.fill_(NEVER)
        self.priority.fill_(LOWEST)
        self.pinned.fill_(False)
