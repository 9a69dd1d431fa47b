"""Policies: which rows stay in the cache."""

import copy

from hotrows.cache.policies.base import Access as Access
from hotrows.cache.policies.base import Policy as Policy
from hotrows.cache.policies.frequency import Frequency
from hotrows.cache.policies.lfu import LFU as LFU
from hotrows.cache.policies.lookahead import Lookahead as Lookahead
from hotrows.cache.policies.lru import LRU as LRU
from hotrows.cache.policies.random import Random

POLICIES: dict[str, type[Policy]] = {
    "lru": LRU,
    "lfu": LFU,
    "frequency": Frequency,
    "random": Random,
    "lookahead": Lookahead,
}


def make_policy(policy: str | Policy) -> Policy:
    """A new policy from a name in POLICIES, or a copy of the given one, because each cache needs its own."""
    if isinstance(policy, Policy):
        return copy.deepcopy(policy)
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}: known are {', '.join(sorted(POLICIES))}, or give a Policy object")
    return POLICIES[policy]()
