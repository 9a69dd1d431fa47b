"""How frequent rows are in the data, known before training."""

import torch
from torch import Tensor

MAX_FREQUENCY = 2**30 - 1  # where counts of lookups saturate; every row that the window needs has a higher priority


class Ranking:
    """A score from 0 to MAX_FREQUENCY for each row, the higher the more frequent the row is.

    Args:
        counts: how often each row occurs, [R]; takes 4 bytes of device memory per row. Without counts, rows are taken
            to be numbered by falling frequency, within their tables if `set_tables` was called.
    """

    def __init__(self, counts: Tensor | None = None) -> None:
        self.rank_of_row: Tensor | None = None  # int32 [R], 0 for the most frequent row
        self._first_rows: Tensor | None = None
        if counts is not None:
            order = torch.argsort(counts.cpu(), descending=True, stable=True)
            self.rank_of_row = torch.empty(counts.numel(), dtype=torch.int32)
            self.rank_of_row[order] = torch.arange(counts.numel(), dtype=torch.int32)

    def check(self, num_rows: int) -> None:
        if self.rank_of_row is not None and self.rank_of_row.numel() != num_rows:
            raise ValueError(
                f"counts are given for {self.rank_of_row.numel():,} rows, but {num_rows:,} rows share the cache: give "
                f"one count per row, table after table"
            )

    def set_tables(self, first_rows: Tensor) -> None:
        """Tables begin at these rows, int64 [T], ascending."""
        self._first_rows = first_rows

    def remap(self, row_of: Tensor) -> None:
        """Rows get other numbers: what was row r is row row_of[r] from now on."""
        if self.rank_of_row is not None:
            rank_of_row = torch.empty_like(self.rank_of_row)
            rank_of_row[row_of.long()] = self.rank_of_row
            self.rank_of_row = rank_of_row

    def move_to(self, device: torch.device) -> None:
        self.rank_of_row = None if self.rank_of_row is None else self.rank_of_row.to(device)
        self._first_rows = None if self._first_rows is None else self._first_rows.to(device)

    def of(self, rows: Tensor) -> Tensor:
        """The scores of int64 [N] rows, int32 [N]; undefined for NO_ROW."""
        rows = rows.clamp(min=0)
        if self.rank_of_row is not None:
            rank = self.rank_of_row[rows]
        elif self._first_rows is not None:
            table = torch.searchsorted(self._first_rows, rows, right=True) - 1
            rank = rows - self._first_rows[table]
        else:
            rank = rows
        return (MAX_FREQUENCY - rank).clamp(min=0).int()
