"""Which announced batches need a row: a hash table from row to a mask of 64 batches."""

import math

import torch
from torch import Tensor

from hotrows.ops import hash_table
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.runtime.streams import writable_state

WINDOW_LIMIT = 64  # batches in one mask
NOT_NEEDED = 2**31 - 1
SMALLEST = 1 << 12
FULL = 0.75  # share of the cells that may be taken, erased ones counted
ROOM = 2.5  # cells per taken one when the table is built anew
UNCOUNTED = 4  # announced batches of which the host may not know yet how many rows they have


class NextUseTable:
    """The uses of rows by batches that were announced and have not come yet, at most 64 at a time.

    Costs memory in proportion to the rows in the window. Until the host has learned how many rows a batch has, the
    length of its array is the estimate, from above. There is room for a few such batches besides, so that the table,
    once it is large enough, is built anew without waiting for any count.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in_window: dict[int, int] = {}  # batch → how many rows it has
        self._num_in_window = 0  # rows of all of them
        self._uncounted: set[int] = set()  # those whose number of rows is an estimate
        self._num_uncounted = 0  # rows of these
        self._most_erased = 0
        self.generation = 0  # how often its arrays were made anew
        # made by the first `add`, in the lane that will use it
        self._keys, self._uses = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        self._most_taken = -1.0  # cells

    def add(self, rows: Tensor, num: Tensor, number: int) -> None:
        """Batch `number` will need the first `num` of these distinct rows."""
        self.expect(number, rows.numel())
        known = hash_table.find(self._keys, rows, num)
        new = hash_table.insert(self._keys, torch.where(known < 0, rows, -1), num)
        cells = torch.where(known >= 0, known, new)
        target = torch.where(cells >= 0, cells, self._keys.numel() - 1)
        uses = torch.where(known >= 0, self._uses[target], 0)
        self._uses[target] = uses | _bit(number)

    def expect(self, number: int, most_rows: int) -> None:
        """Make room for batch `number` with at most so many rows."""
        assert len(self._in_window) < WINDOW_LIMIT
        if not self.has_room(most_rows):
            with defer_sigint(), writable_state():
                self._make_room(most_rows)
        self._forget(number)
        self._num_in_window += most_rows
        self._in_window[number] = most_rows
        self._num_uncounted += most_rows
        self._uncounted.add(number)

    def has_room(self, num_rows: int) -> bool:
        """Whether so many rows more can be added without building the table anew."""
        return self._num_in_window + self._most_erased + num_rows <= self._most_taken

    def makes_room(self, num_rows: int) -> bool:
        """Whether so many rows more can be added if the table is built anew, as large as it is."""
        return self._num_in_window + num_rows <= self._most_taken

    def arrays(self) -> tuple[Tensor, Tensor, int]:
        """Rows by cell, uses by cell, and the number of cells that are searched; valid for this generation."""
        return self._keys, self._uses, self._keys.numel() - 1

    def take(self, rows: Tensor, num: Tensor, number: int | None, done: Tensor | None = None) -> Tensor:
        """Strike batch `number` off these rows, and answer which batch needs each of them next, int64 [N].

        Nothing is struck off where `number` is None, or where the scalar `done` is false.
        """
        if self._keys.numel() == 0:
            return torch.full_like(rows, NOT_NEEDED)
        cells = hash_table.find(self._keys, rows, num)
        nowhere = self._keys.numel() - 1
        target = torch.where(cells >= 0, cells, nowhere)
        uses = torch.where(cells >= 0, self._uses[target], 0)
        if number is None:
            return _first(uses, min(self._in_window, default=0))
        remaining = uses & ~_bit(number)
        if done is not None:
            remaining = torch.where(done, remaining, uses)
        self._uses[target] = remaining
        over = (cells >= 0) & (remaining == 0)
        self._keys[torch.where(over, cells, nowhere)] = torch.where(over, hash_table.ERASED, hash_table.BARRED)
        return _first(remaining, number + 1)

    def count(self, number: int, num_rows: int) -> None:
        """The host has learned how many rows batch `number` has."""
        if number in self._in_window:
            self._forget(number)
            self._num_in_window += num_rows
            self._in_window[number] = num_rows

    def leave(self, number: int, num_erased: int | None = None) -> None:
        """Batch `number` is no longer ahead, if it was.

        Args:
            num_erased: cells that it has left neither taken nor empty; without it, one for each of its rows.
        """
        num_rows = self._forget(number)
        self._most_erased += num_rows if num_erased is None else num_erased

    def _forget(self, number: int) -> int:
        """How many rows batch `number` was said to have."""
        num_rows = self._in_window.pop(number, 0)
        self._num_in_window -= num_rows
        if number in self._uncounted:
            self._uncounted.remove(number)
            self._num_uncounted -= num_rows
        return num_rows

    def _likely_in_window(self) -> float:
        """Rows of all batches in the window, those that are not counted like the others."""
        num_counted = len(self._in_window) - len(self._uncounted)
        if num_counted == 0:
            return self._num_in_window
        return (self._num_in_window - self._num_uncounted) * len(self._in_window) / num_counted

    def _make_room(self, num_rows: int) -> None:
        live = self._likely_in_window() + num_rows
        # that it is not soon full again, and has room whether batches are counted or not
        with_uncounted = max(self._num_in_window + num_rows, live + UNCOUNTED * num_rows)
        fewest = math.ceil(max(SMALLEST, ROOM * live, with_uncounted / FULL))
        grows = fewest > self._keys.numel() - 1
        old_keys, old_uses = self._keys, self._uses
        keys, uses = self._empty(max(fewest, int(2 * ROOM * live)) if grows else old_keys.numel() - 1)
        if old_keys.numel() > 0:
            rows = old_keys[:-1]
            num = torch.full((1,), rows.numel(), dtype=torch.int32, device=self._device)
            cells = hash_table.insert(keys, rows, num)  # erased and empty cells hold no row
            uses[torch.where(cells >= 0, cells, keys.numel() - 1)] = old_uses[:-1]
        self._most_erased = 0
        if grows:
            self._keys, self._uses = keys, uses
            self._most_taken = FULL * (keys.numel() - 1)
            self.generation += 1
        else:
            old_keys.copy_(keys)
            old_uses.copy_(uses)

    def _empty(self, num_cells: int) -> tuple[Tensor, Tensor]:
        keys = torch.full((num_cells + 1,), hash_table.EMPTY, dtype=torch.int64, device=self._device)
        keys[-1:].fill_(hash_table.BARRED)
        return keys, torch.zeros(num_cells + 1, dtype=torch.int64, device=self._device)


def _bit(number: int) -> int:
    """The bit of a batch in the mask, as a signed 64-bit number."""
    bit = 1 << (number % 64)
    return bit - (1 << 64) if bit >> 63 else bit


def _first(uses: Tensor, start: int) -> Tensor:
    """The first of the 64 batches from `start` on whose bit is set; NOT_NEEDED where none is."""
    turn = start % 64
    if turn:
        uses = ((uses >> turn) & ((1 << (64 - turn)) - 1)) | (uses << (64 - turn))
    lowest = uses & -uses
    # the exponent of a power of two, without a loop over bits; bit 63 makes the number negative
    exponent = torch.frexp(lowest.abs().double()).exponent.long() - 1
    exponent = torch.where(lowest < 0, 63, exponent)
    return torch.where(uses == 0, NOT_NEEDED, start + exponent)
