"""Stale reads: the next batch's values are read when its rows are fetched, before the current batch has updated them.

This is HECA as published: while a batch trains, the values of the next batch's rows are collected, from the cache if
they are there and from the store otherwise, and the next batch is computed with these values. The value of a row that
both batches use is then one update old. Only what the forward pass reads is old: gradients are applied to the current
record, so that no update is lost.

Reads and updates alternate in a fixed order, so the result is the same every time: batch t + 1 is read after the
update of batch t - 1, and the update of batch t waits for that read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.runtime.streams import Event


@dataclass
class StaleRead:
    """The values of a batch's unique rows as they were when its rows were fetched."""

    values: Tensor  # float32 [U, D]
    counted: bool = False  # true once its stale rows were counted


class StaleReads:
    """The stale reads of one cache, and how many of their rows were out of date when they were used."""

    def __init__(self, device: torch.device) -> None:
        self._num_stale = torch.zeros((), dtype=torch.int64, device=device)
        self.last: Event | None = None  # recorded after the last of these reads

    def count(self, read: StaleRead, records: Tensor, row_slots: Tensor) -> None:
        """Count the rows whose values have changed since they were read.

        Call it when the forward pass uses the read; only the first call counts.

        Args:
            records: [S, W], those of the cache.
        """
        if read.counted:
            return
        read.counted = True
        num, dim = read.values.shape
        current = records[row_slots[:num].clamp(min=0), :dim]
        # Compare bits, because NaN differs from itself.
        differs = (current.view(torch.int32) != read.values.view(torch.int32)).any(1)
        self._num_stale += (differs & (row_slots[:num] >= 0)).sum()

    def num_stale(self) -> int:
        """Waits for the device."""
        return int(self._num_stale)
