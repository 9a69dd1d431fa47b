"""Static frequency: a rank of all rows given beforehand (FreqCache's rule)."""

import torch
from torch import Tensor

from hotrows.cache.policies.base import Access, Policy
from hotrows.cache.slots import Slots


class Frequency(Policy):
    """Evicts the row that is the least frequent in the data, as known beforehand.

    Args:
        counts: how often each row occurs, [R]; takes 4 bytes of device memory per row. Without it, rows are taken to
            be numbered by falling frequency: `EmbeddingBagCollection` then compares ids within their tables.
    """

    def __init__(self, counts: Tensor | None = None) -> None:
        self._rank: Tensor | None = None
        self._first_rows: Tensor | None = None
        if counts is not None:
            order = torch.argsort(counts.cpu(), descending=True, stable=True)
            self._rank = torch.empty(counts.numel(), dtype=torch.int32)
            self._rank[order] = torch.arange(counts.numel(), dtype=torch.int32)

    def bind(self, slots: Slots) -> None:
        super().bind(slots)
        if self._rank is not None:
            self._rank = self._rank.to(slots.device)
        if self._first_rows is not None:
            self._first_rows = self._first_rows.to(slots.device)

    def number_within(self, first_rows: Tensor) -> None:
        """Rank rows by their id within the table that begins at one of `first_rows`, int64 [T], ascending."""
        self._first_rows = first_rows

    def access(self, access: Access) -> None:
        rows = access.rows.clamp(min=0)
        if self._rank is not None:
            rank = self._rank[rows]
        elif self._first_rows is not None:
            table = torch.searchsorted(self._first_rows, rows, right=True) - 1
            rank = rows - self._first_rows[table]
        else:
            rank = rows
        self.slots.priority[access.slots] = (-rank).clamp(min=-(2**31) + 1).int()
