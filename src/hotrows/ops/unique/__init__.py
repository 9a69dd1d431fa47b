"""Distinct rows of a batch, from one stable sort (HECA's DSF)."""

from typing import NamedTuple

from torch import Tensor

from hotrows.ops.unique import reference


class UniqueRows(NamedTuple):
    """The distinct rows of a batch and where each lookup finds its own.

    `rows[inverse]` gives the batch back; lookup `order[i]` for `starts[u] ≤ i < starts[u + 1]` are those of row `u`,
    in the order of the batch.
    """

    rows: Tensor  # int64 [N], ascending, NO_ROW from position U on
    num: Tensor  # int32 [1], U
    inverse: Tensor  # int32 [N], -1 where the lookup has no row
    order: Tensor  # int32 [N], lookups without a row last
    starts: Tensor  # int32 [N + 1], equal to the number of lookups with a row from position U on
    block_rows: Tensor  # int32 [N / LOOKUPS_PER_BLOCK], the distinct row at the beginning of each block of `order`


def unique_rows(rows: Tensor) -> UniqueRows:
    """Sort int64 [N] rows (NO_ROW: a lookup without a row) into a `Distinct`."""
    if rows.is_cuda:
        from hotrows.ops.unique import kernel

        return UniqueRows(*kernel.unique_rows(rows))
    return UniqueRows(*reference.unique_rows(rows))
