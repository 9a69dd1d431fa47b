"""The part of a batch of ids [B, F] that one group looks up, one id per bag."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class IdColumns:
    columns: Tensor | None  # int64 [f], None for all
    first_row: Tensor  # int64 [f], where the tables of these features begin
    num_rows: Tensor  # int64 [f]
