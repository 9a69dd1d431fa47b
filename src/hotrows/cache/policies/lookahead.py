"""Look ahead: evict rows that the window does not need, the least frequent first.

If the window needs every row that may be evicted, the row whose next use is the furthest away goes first. So within the
window the choice is the optimal one (Belady's). Each row that the window needs has a bit mask of the announced batches
that need it. The first of these batches is its next use.
"""

import torch
from torch import Tensor

from hotrows.cache.policies.base import Access, Policy, PolicyKernelSpec
from hotrows.cache.policies.next_use import NOT_NEEDED, WINDOW_LIMIT, NextUseTable
from hotrows.cache.policies.ranking import MAX_FREQUENCY, Ranking
from hotrows.cache.slots import Slots
from hotrows.ops.select_victims import MAX_SEEN, NEEDED

# Counts below EXACTLY_SEEN are priorities themselves. Larger counts are rounded down to 8 steps per power of two: the
# exponent and top 3 mantissa bits of the count as a float32, minus STEPS_BELOW. That offset makes the two ranges meet:
# 128 maps to 128.
EXACTLY_SEEN = 128
STEPS_BELOW = (127 + 7) * 8 - EXACTLY_SEEN


class Lookahead(Policy):
    """Keeps what the window needs and, of the other rows, those that are frequent.

    Args:
        counts: how often each row occurs in the data, [R], if that is known beforehand; takes 4 bytes of device memory
            per row. Otherwise lookups are counted while a row is in the cache.
    """

    looks_ahead = True
    scans_ranges = True
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

    def announce(self, rows: Tensor, slots: Tensor, num: Tensor, batch_number: int) -> None:
        self.next_use.add(rows, num, batch_number)
        # A row that an earlier batch needs has a higher priority already.
        self.slots.priority[slots] = self.slots.priority[slots].clamp(min=NEEDED - batch_number)

    def withdraw(self, rows: Tensor, slots: Tensor, num: Tensor, batch_number: int) -> None:
        next_use = self.next_use.take(rows, num, batch_number)
        self.next_use.leave(batch_number)
        self._prioritize(slots, next_use, self.seen[slots])

    def note_unique_count(self, batch_number: int, num_rows: int) -> None:
        self.next_use.note_unique_count(batch_number, num_rows)

    def batch_planned(self, batch_number: int, num_erased: int) -> None:
        self.next_use.leave(batch_number, num_erased)

    def forget(self, batch_number: int) -> None:
        self.next_use.remove(batch_number)

    def note_lost_plan(self, num_rows: int) -> None:
        self.next_use.note_erased(num_rows)

    def access(self, access: Access) -> None:
        if self._ranking is None:
            seen = torch.where(access.fresh, 0, self.seen[access.slots]) + access.occurrences
            seen = seen.clamp(max=MAX_FREQUENCY)
        else:
            seen = self._ranking.of(access.rows)
        self.seen[access.slots] = seen
        next_use = self.next_use.take(access.rows, access.num, access.batch_number, access.fits)
        self._prioritize(access.slots, next_use, seen)

    def kernel_spec(self) -> PolicyKernelSpec:
        rank_of_row = None if self._ranking is None else self._ranking.rank_of_row
        return PolicyKernelSpec(
            "lookahead",
            coalesces=True,
            next_use=self.next_use,
            seen=self.seen,
            rank_of_row=rank_of_row,
            one_byte=rank_of_row is None,
            scans_ranges=self.scans_ranges,
        )

    def _prioritize(self, slots: Tensor, next_use: Tensor, seen: Tensor) -> None:
        frequency = seen if self._ranking is not None else _in_steps(seen)
        priority = torch.where(next_use == NOT_NEEDED, frequency, NEEDED - next_use)
        self.slots.priority[slots] = priority.int()


def _in_steps(seen: Tensor) -> Tensor:
    """Map counts monotonically to 0 … MAX_SEEN.

    Priorities then fit into one byte, and the radix select takes one pass.
    """
    above = (seen.float().view(torch.int32) >> 20) - STEPS_BELOW
    return torch.where(seen < EXACTLY_SEEN, seen, above.clamp(max=MAX_SEEN))
