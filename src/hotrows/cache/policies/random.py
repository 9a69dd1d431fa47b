"""Random replacement. Priorities are hashes of seed, plan number and slot, so that a run can be repeated."""

import torch

from hotrows.cache.policies.base import Access, Policy
from hotrows.cache.slots import LOWEST, Slots
from hotrows.ops.hash_table.reference import mix


class Random(Policy):
    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def bind(self, slots: Slots) -> None:
        super().bind(slots)
        self._slot = torch.arange(slots.num, device=slots.device)

    def access(self, access: Access) -> None:
        pass

    def refresh(self, plan_number: int) -> None:
        drawn = mix(self._slot + (self._seed * 1_000_003 + plan_number) * self.slots.num) >> 33
        end = self.slots.num
        self.slots.priority[:end] = torch.where(self.slots.row[:end] < 0, LOWEST, drawn).int()
