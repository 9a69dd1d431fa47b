"""Least frequently used: lookups are counted while a row is in the cache."""

import torch

from hotrows.cache.policies.base import Access, Policy, PolicyKernelSpec
from hotrows.cache.policies.ranking import MAX_FREQUENCY


class LFU(Policy):
    def access(self, access: Access) -> None:
        seen = torch.where(access.fresh, 0, self.slots.priority[access.slots])
        # The count saturates, because the sum with a batch's lookups must not pass 2^31.
        self.slots.priority[access.slots] = (seen + access.occurrences).clamp(max=MAX_FREQUENCY)

    def kernel_spec(self) -> PolicyKernelSpec:
        return PolicyKernelSpec("lfu")
