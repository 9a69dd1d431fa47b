"""Look ahead: never evict what the window needs; among the rest, the least frequent first.

Rows that are needed go in the order of their next use, the furthest first, so that within the window the choice is
the optimal one (Belady's). The next use of a row is read off a bit mask of the announced batches that need it.
"""

import torch
from torch import Tensor

from hotrows.cache.policies.base import Access, Policy
from hotrows.cache.policies.next_use import NOT_NEEDED, WINDOW_LIMIT, NextUseTable
from hotrows.cache.policies.ranking import MOST_FREQUENT, Ranking
from hotrows.cache.slots import Slots
from hotrows.ops.select_victims import MOST_SEEN, NEEDED

EXACTLY_SEEN = 128  # times that are told apart; above, eight steps from one power of two to the next are
STEPS_BELOW = (127 + 7) * 8 - EXACTLY_SEEN  # of a float's exponent and three bits; the step of 2^7 is its own number


class Lookahead(Policy):
    """Keeps what the window needs; among the rest, what is frequent.

    Args:
        counts: how often each row occurs in the data, [R], if that is known beforehand; 4 bytes of device memory per
            row. Otherwise lookups are counted while a row is in the cache.
    """

    looks_ahead = True
    by_parts = True
    window_limit = WINDOW_LIMIT

    def __init__(self, counts: Tensor | None = None) -> None:
        self._ranking = None if counts is None else Ranking(counts)

    def check(self, num_rows: int) -> None:
        if self._ranking is not None:
            self._ranking.check(num_rows)

    def remap(self, row_of: Tensor) -> None:
        if self._ranking is not None:
            self._ranking.remap(row_of)

    def bind(self, slots: Slots) -> None:
        super().bind(slots)
        if self._ranking is not None:
            self._ranking.move_to(slots.device)
        self.seen = torch.zeros(slots.num + 1, dtype=torch.int32, device=slots.device)
        self.next_use = NextUseTable(slots.device)

    @property
    def place_of(self) -> Tensor | None:
        """Each row's place in the order of frequency, int32 [R], where that is known beforehand."""
        return None if self._ranking is None else self._ranking.place

    def announce(self, rows: Tensor, slots: Tensor, num: Tensor, number: int) -> None:
        self.next_use.add(rows, num, number)
        # an earlier need is the higher priority already
        self.slots.priority[slots] = self.slots.priority[slots].clamp(min=NEEDED - number)

    def withdraw(self, rows: Tensor, slots: Tensor, num: Tensor, number: int) -> None:
        next_use = self.next_use.take(rows, num, number)
        self.next_use.leave(number)
        self._prioritize(slots, next_use, self.seen[slots])

    def counted(self, number: int, num_rows: int) -> None:
        self.next_use.count(number, num_rows)

    def came(self, number: int, num_erased: int) -> None:
        self.next_use.leave(number, num_erased)

    def access(self, access: Access) -> None:
        if self._ranking is None:
            seen = torch.where(access.fresh, 0, self.seen[access.slots]) + access.occurrences
            seen = seen.clamp(max=MOST_FREQUENT)  # below the priority of every row that is needed
        else:
            seen = self._ranking.of(access.rows)
        self.seen[access.slots] = seen
        next_use = self.next_use.take(access.rows, access.num, access.number, access.done)
        self._prioritize(access.slots, next_use, seen)

    def _prioritize(self, slots: Tensor, next_use: Tensor, seen: Tensor) -> None:
        frequent = seen if self._ranking is not None else _in_steps(seen)
        priority = torch.where(next_use == NOT_NEEDED, frequent, NEEDED - next_use)
        self.slots.priority[slots] = priority.int()


def _in_steps(seen: Tensor) -> Tensor:
    """A count as a number from 0 to MOST_SEEN of the same order, so that victims are chosen in one pass."""
    above = (seen.float().view(torch.int32) >> 20) - STEPS_BELOW  # exponent and three bits of a float
    return torch.where(seen < EXACTLY_SEEN, seen, above.clamp(max=MOST_SEEN))
