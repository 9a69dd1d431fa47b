"""How frequent rows are, known beforehand."""

import torch
from torch import Tensor

MOST_FREQUENT = 2**30 - 1


class Ranking:
    """Answers a number per row, the higher the more frequent, from 0 to MOST_FREQUENT.

    Args:
        counts: how often each row occurs, [R]; takes 4 bytes of device memory per row. Without it, rows are taken to
            be numbered by falling frequency, within their tables if `number_within` says where those begin.
    """

    def __init__(self, counts: Tensor | None = None) -> None:
        self.place: Tensor | None = None
        self._first_rows: Tensor | None = None
        if counts is not None:
            order = torch.argsort(counts.cpu(), descending=True, stable=True)
            self.place = torch.empty(counts.numel(), dtype=torch.int32)
            self.place[order] = torch.arange(counts.numel(), dtype=torch.int32)

    def check(self, num_rows: int) -> None:
        if self.place is not None and self.place.numel() != num_rows:
            raise ValueError(
                f"counts are given for {self.place.numel():,} rows, but {num_rows:,} rows share the cache: give one "
                f"count per row, table after table"
            )

    def number_within(self, first_rows: Tensor) -> None:
        """Tables begin at these rows, int64 [T], ascending."""
        self._first_rows = first_rows

    def remap(self, row_of: Tensor) -> None:
        """What was row r is row_of[r] now."""
        if self.place is not None:
            place = torch.empty_like(self.place)
            place[row_of.long()] = self.place
            self.place = place

    def move_to(self, device: torch.device) -> None:
        self.place = None if self.place is None else self.place.to(device)
        self._first_rows = None if self._first_rows is None else self._first_rows.to(device)

    def of(self, rows: Tensor) -> Tensor:
        """int32 [N] for int64 [N] rows; anything where there is no row."""
        rows = rows.clamp(min=0)
        if self.place is not None:
            place = self.place[rows]
        elif self._first_rows is not None:
            table = torch.searchsorted(self._first_rows, rows, right=True) - 1
            place = rows - self._first_rows[table]
        else:
            place = rows
        return (MOST_FREQUENT - place).clamp(min=0).int()
