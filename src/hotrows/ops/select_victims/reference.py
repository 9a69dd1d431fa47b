"""Victim selection in plain PyTorch."""

import torch
from torch import Tensor

from hotrows.ops.rows import NO_SLOT


def select_victims(priority: Tensor, last_used: Tensor, pinned: Tensor, oldest: int, num_wanted: Tensor, most: int) -> Tensor:
    chosen = torch.full((most,), NO_SLOT, dtype=torch.int32, device=priority.device)
    evictable = ((last_used < oldest) & ~pinned).nonzero().squeeze(1)
    wanted = min(int(num_wanted), evictable.numel())
    if wanted == 0:
        return chosen
    if wanted < evictable.numel():
        candidates = priority[evictable]
        # not kthvalue, which takes time in the square of the slots where they are in order of priority
        limit = torch.topk(candidates, wanted, largest=False, sorted=False).values.max()
        below = candidates < limit
        ties = (candidates == limit).nonzero().squeeze(1)[: wanted - int(below.sum())]
        below[ties] = True
        evictable = evictable[below]
    chosen[:wanted] = evictable
    return chosen
