"""Which slots are looked at for victims: a part of them at a time, so that the cost of a plan grows with the batch.

A part has many more slots than a batch has rows, so the lowest priorities in it are hardly higher than those of all
slots; the next plan looks at the part behind it, and in the end each slot has its turn. Where a part has too few slots
that may go, the batch is planned again, with all of them.
"""

from typing import NamedTuple

LEAST = 1 << 16
PER_ROW = 8  # slots to look at for each distinct row of a batch


class Scan(NamedTuple):
    """So many slots from a first one on, those from slot 0 on behind the last one."""

    start: int
    length: int


class Scans:
    """The parts of `num_slots` slots, one after the other."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._next = 0
        self.of_all = Scan(0, num_slots)

    def next_part(self, num_rows: int) -> Scan:
        """For a batch of at most so many distinct rows."""
        length = max(LEAST, PER_ROW * num_rows)
        if length >= self._num_slots:
            return self.of_all
        start, self._next = self._next, (self._next + length) % self._num_slots
        return Scan(start, length)
