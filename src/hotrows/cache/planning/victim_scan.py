"""Which slots are looked at for victims: a part of them at a time, so that the cost of a plan grows with the batch.

A part has many more slots than a batch has rows, so the lowest priorities in it are hardly higher than those of all
slots; the next plan looks at the part behind it, and in the end each slot has its turn. Where a part has too few slots
that may go, the batch is planned again, with all of them.

The parts stay the same from round to round, because of what that does to the moves: the rows of a batch come in
ascending order and take the slots of a part in ascending order, time and again, so that in the end rows are in a part
about in their order, and also leave in about ascending order. Host memory is faster so.
"""

from typing import NamedTuple

LEAST = 1 << 15
PER_ROW = 4  # slots to look at for each distinct row of a batch


class ScanRange(NamedTuple):
    """So many slots from a first one on, those from slot 0 on behind the last one."""

    start: int
    length: int


class VictimScan:
    """The parts of `num_slots` slots, one after the other."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._num_parts = 1
        self._next = 0
        self.of_all = ScanRange(0, num_slots)

    def next_part(self, num_rows: int) -> ScanRange:
        """For a batch of at most so many distinct rows."""
        wanted = max(LEAST, PER_ROW * num_rows)
        if wanted * 2 > self._num_slots:
            return self.of_all
        # others only where these are too small, or twice as large as they must be
        if not wanted <= self._num_slots // self._num_parts < 2 * wanted:
            self._num_parts = self._num_slots // wanted
        part = self._next % self._num_parts
        self._next = part + 1
        start = self._num_slots * part // self._num_parts
        return ScanRange(start, self._num_slots * (part + 1) // self._num_parts - start)
