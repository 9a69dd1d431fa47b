"""Which columns of a batch of ids [B, F] one cache looks up. Every bag has exactly one id."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class IdColumns:
    columns: Tensor | None  # int64 [f], which columns of the ids; None for all
    first_row: Tensor  # int64 [f], the first row of each column's table
    num_rows: Tensor  # int64 [f], the number of rows of each column's table
