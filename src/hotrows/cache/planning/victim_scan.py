"""Which slots a plan scans for victims: one range of them, so its cost depends on the batch and not on the cache.

A range has at least 4 slots per unique row (PER_ROW), so its victims are nearly as good as those among all slots.
The next plan scans the next range, so every slot is scanned after a while. If a range has too few slots that may be
evicted, the batch is planned again with all slots.

The ranges stay the same from round to round, which makes the moves faster: the rows of a batch are in ascending order
and take the slots of a range in ascending order. After some rounds the rows of a range are in about ascending order,
so they also leave in about that order, and host memory is faster when it is accessed in order.
"""

from typing import NamedTuple

MIN_SLOTS = 1 << 15  # slots of a range
PER_ROW = 4  # slots of a range for each unique row of the batch


class ScanRange(NamedTuple):
    """`length` slots from `start` on; behind the last slot the range goes on at slot 0."""

    start: int
    length: int


class VictimScan:
    """The ranges of `num_slots` slots, one after the other."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._num_ranges = 1
        self._next = 0
        self.all_slots = ScanRange(0, num_slots)

    def next_range(self, num_rows: int) -> ScanRange:
        """The range for a batch of at most `num_rows` unique rows."""
        wanted = max(MIN_SLOTS, PER_ROW * num_rows)
        if wanted * 2 > self._num_slots:
            return self.all_slots
        # The ranges change only if they are too small, or at least twice as large as they must be.
        if not wanted <= self._num_slots // self._num_ranges < 2 * wanted:
            self._num_ranges = self._num_slots // wanted
        number = self._next % self._num_ranges
        self._next = number + 1
        start = self._num_slots * number // self._num_ranges
        return ScanRange(start, self._num_slots * (number + 1) // self._num_ranges - start)
