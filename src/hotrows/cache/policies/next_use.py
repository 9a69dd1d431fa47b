"""The next-use table: which announced batches need a row, as a hash table from row to a mask of 64 batches."""

import math

import torch
from torch import Tensor

from hotrows.ops import hash_table
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.runtime.streams import writable_state

WINDOW_LIMIT = 64  # batches in one mask
NOT_NEEDED = 2**31 - 1
MIN_CELLS = 1 << 12
MAX_LOAD = 0.75  # share of the cells that may be taken, erased ones included
CELLS_PER_ROW = 2.5  # a rebuilt table has at least this many cells for each row in the window
MAX_UNCOUNTED = 4  # a rebuilt table has room for this many batches whose unique rows are not counted yet


class NextUseTable:
    """The uses of rows by batches that were announced and are not planned yet, at most 64 at a time.

    Memory is proportional to the rows in the window. Until the host has read back how many unique rows a batch has, the
    host assumes that every entry of the batch's array is a row of its own. The table has spare room for a few such
    batches. So once the table is large enough, it can be rebuilt without growing, and no readback is waited for.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in_window: dict[int, int] = {}  # batch number → upper bound on its rows
        self._num_in_window = 0  # the sum of these upper bounds
        self._uncounted: set[int] = set()  # batches in the window whose number of unique rows was not read back yet
        self._num_uncounted = 0  # the sum of the upper bounds of these batches
        self._max_erased = 0  # upper bound on the cells marked as erased
        self.generation = 0  # how often the arrays were replaced by larger ones
        # The first `expect` allocates the arrays: it runs in the planning stream, to which their memory must belong.
        self._keys, self._uses = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        self._max_taken = -1.0  # how many cells may be taken

    def add(self, rows: Tensor, num: Tensor, batch_number: int) -> None:
        """A batch will need the first `num` of these unique rows."""
        self.expect(batch_number, rows.numel())
        known = hash_table.find(self._keys, rows, num)
        new = hash_table.insert(self._keys, torch.where(known < 0, rows, -1), num)
        cells = torch.where(known >= 0, known, new)
        target = torch.where(cells >= 0, cells, self._keys.numel() - 1)
        uses = torch.where(known >= 0, self._uses[target], 0)
        self._uses[target] = uses | _bit(batch_number)

    def expect(self, batch_number: int, max_rows: int) -> None:
        """Make room for a batch with at most `max_rows` unique rows."""
        assert len(self._in_window) < WINDOW_LIMIT
        if not self.has_room(max_rows):
            with defer_sigint(), writable_state():
                self._make_room(max_rows)
        self._forget(batch_number)
        self._num_in_window += max_rows
        self._in_window[batch_number] = max_rows
        self._num_uncounted += max_rows
        self._uncounted.add(batch_number)

    def has_room(self, num_rows: int) -> bool:
        """Whether `num_rows` more rows can be added without rebuilding the table."""
        return self._num_in_window + self._max_erased + num_rows <= self._max_taken

    def rebuild_makes_room(self, num_rows: int) -> bool:
        """Whether `num_rows` more rows can be added if the table is rebuilt at its present size."""
        return self._num_in_window + num_rows <= self._max_taken

    def arrays(self) -> tuple[Tensor, Tensor, int]:
        """The row in each cell, the uses of each cell's row, and the number of cells; valid for this generation."""
        return self._keys, self._uses, self._keys.numel() - 1

    def take(self, rows: Tensor, num: Tensor, batch_number: int | None, fits: Tensor | None = None) -> Tensor:
        """Remove a batch from the uses of these rows, and return which batch needs each row next, int64 [N].

        Nothing is removed if `batch_number` is None or the scalar `fits` is false.
        """
        if self._keys.numel() == 0:
            return torch.full_like(rows, NOT_NEEDED)
        cells = hash_table.find(self._keys, rows, num)
        beyond = self._keys.numel() - 1
        target = torch.where(cells >= 0, cells, beyond)
        uses = torch.where(cells >= 0, self._uses[target], 0)
        if batch_number is None:
            return _first(uses, min(self._in_window, default=0))
        remaining = uses & ~_bit(batch_number)
        if fits is not None:
            remaining = torch.where(fits, remaining, uses)
        self._uses[target] = remaining
        unused = (cells >= 0) & (remaining == 0)
        self._keys[torch.where(unused, cells, beyond)] = torch.where(unused, hash_table.ERASED, hash_table.BARRED)
        return _first(remaining, batch_number + 1)

    def note_unique_count(self, batch_number: int, num_rows: int) -> None:
        """The host has read back how many unique rows a batch has."""
        if batch_number in self._in_window:
            self._forget(batch_number)
            self._num_in_window += num_rows
            self._in_window[batch_number] = num_rows

    def leave(self, batch_number: int, num_erased: int | None = None) -> None:
        """A batch leaves the window, if it was in it.

        Args:
            num_erased: upper bound on the cells that were marked as erased when the batch was removed from the uses of
                its rows; None for one cell per row.
        """
        num_rows = self._forget(batch_number)
        self._max_erased += num_rows if num_erased is None else num_erased

    def remove(self, batch_number: int) -> None:
        """Announcing a batch failed: take it out of the window, and out of the uses of every row it was added to.

        Rows without uses stay in their cells until the table is rebuilt, and count as erased until then.
        """
        self.leave(batch_number)
        self._uses.bitwise_and_(~_bit(batch_number))

    def note_erased(self, num_cells: int) -> None:
        """At most this many further cells may have been marked as erased."""
        self._max_erased += num_cells

    def _forget(self, batch_number: int) -> int:
        """Take a batch out of the window, and return the upper bound on its rows."""
        num_rows = self._in_window.pop(batch_number, 0)
        self._num_in_window -= num_rows
        if batch_number in self._uncounted:
            self._uncounted.remove(batch_number)
            self._num_uncounted -= num_rows
        return num_rows

    def _likely_in_window(self) -> float:
        """An estimate of the rows in the window. Batches that are not counted are assumed to be like the others."""
        num_counted = len(self._in_window) - len(self._uncounted)
        if num_counted == 0:
            return self._num_in_window
        return (self._num_in_window - self._num_uncounted) * len(self._in_window) / num_counted

    def _make_room(self, num_rows: int) -> None:
        likely = self._likely_in_window() + num_rows
        # The rebuilt table must not be full again soon. It must also have room while batches are not counted yet.
        with_uncounted = max(self._num_in_window + num_rows, likely + MAX_UNCOUNTED * num_rows)
        min_cells = math.ceil(max(MIN_CELLS, CELLS_PER_ROW * likely, with_uncounted / MAX_LOAD))
        grows = min_cells > self._keys.numel() - 1
        old_keys, old_uses = self._keys, self._uses
        keys, uses = self._empty(max(min_cells, int(2 * CELLS_PER_ROW * likely)) if grows else old_keys.numel() - 1)
        if old_keys.numel() > 0:
            rows = torch.where(old_uses[:-1] == 0, hash_table.EMPTY, old_keys[:-1])  # `remove` leaves rows without uses
            num = torch.full((1,), rows.numel(), dtype=torch.int32, device=self._device)
            cells = hash_table.insert(keys, rows, num)  # EMPTY and ERASED are negative, so they are not inserted
            uses[torch.where(cells >= 0, cells, keys.numel() - 1)] = old_uses[:-1]
        if grows:
            self._keys, self._uses = keys, uses
            self._max_taken = MAX_LOAD * (keys.numel() - 1)
            self.generation += 1
        else:  # captured graphs hold the addresses of the arrays, so these stay
            old_keys.copy_(keys)
            old_uses.copy_(uses)
        self._max_erased = 0

    def _empty(self, num_cells: int) -> tuple[Tensor, Tensor]:
        keys = torch.full((num_cells + 1,), hash_table.EMPTY, dtype=torch.int64, device=self._device)
        keys[-1:].fill_(hash_table.BARRED)
        return keys, torch.zeros(num_cells + 1, dtype=torch.int64, device=self._device)


def _bit(batch_number: int) -> int:
    """The bit of a batch in the mask, as a signed 64-bit number."""
    bit = 1 << (batch_number % 64)
    return bit - (1 << 64) if bit >> 63 else bit


def _first(uses: Tensor, start: int) -> Tensor:
    """The first of the 64 batches from `start` on whose bit is set; NOT_NEEDED where none is."""
    rotation = start % 64
    if rotation:
        uses = ((uses >> rotation) & ((1 << (64 - rotation)) - 1)) | (uses << (64 - rotation))
    lowest = uses & -uses
    # The exponent of a power of two, without a loop over bits. Bit 63 makes the number negative.
    exponent = torch.frexp(lowest.abs().double()).exponent.long() - 1
    exponent = torch.where(lowest < 0, 63, exponent)
    return torch.where(uses == 0, NOT_NEEDED, start + exponent)
