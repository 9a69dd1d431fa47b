"""Least frequently used: lookups counted while a row is in the cache."""

import torch

from hotrows.cache.policies.base import Access, Policy

MOST = 2**30  # a count stays there: the sum with a batch's must not pass 2^31


class LFU(Policy):
    def access(self, access: Access) -> None:
        seen = torch.where(access.fresh, 0, self.slots.priority[access.slots])
        self.slots.priority[access.slots] = (seen + access.occurrences).clamp(max=MOST)
