"""Victim selection in plain PyTorch."""

import torch
from torch import Tensor

from hotrows.ops.rows import NO_SLOT


def select_victims(
    priority: Tensor, last_used: Tensor, pinned: Tensor, oldest: int, num_wanted: Tensor, length: int
) -> Tensor:
    victims = torch.full((length,), NO_SLOT, dtype=torch.int32, device=priority.device)
    evictable = ((last_used < oldest) & ~pinned).nonzero().squeeze(1)
    wanted = min(int(num_wanted), evictable.numel())
    if wanted == 0:
        return victims
    if wanted < evictable.numel():
        candidates = priority[evictable]
        # `kthvalue` takes time quadratic in the slots if these are in order of priority.
        limit = torch.topk(candidates, wanted, largest=False, sorted=False).values.max()
        chosen = candidates < limit
        ties = (candidates == limit).nonzero().squeeze(1)[: wanted - int(chosen.sum())]
        chosen[ties] = True
        evictable = evictable[chosen]
    victims[:wanted] = evictable
    return victims
