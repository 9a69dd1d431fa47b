"""Least recently used."""

from hotrows.cache.policies.base import Access, Policy, PolicyKernelSpec


class LRU(Policy):
    def access(self, access: Access) -> None:
        self.slots.priority.index_fill_(0, access.slots, access.plan_number)

    def kernel_spec(self) -> PolicyKernelSpec:
        return PolicyKernelSpec("lru")
