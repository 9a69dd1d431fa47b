"""Least frequently used: lookups counted while a row is in the cache."""

import torch

from hotrows.cache.policies.base import Access, Policy


class LFU(Policy):
    def access(self, access: Access) -> None:
        seen = torch.where(access.fresh, 0, self.slots.priority[access.slots])
        self.slots.priority[access.slots] = seen + access.occurrences
