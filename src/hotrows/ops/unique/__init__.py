"""The unique rows of a batch, from one stable sort (HECA's DSF)."""

from typing import NamedTuple

from torch import Tensor

from hotrows.ops.unique import reference


class UniqueRows(NamedTuple):
    """The unique rows of a batch, and where each lookup finds its row among them.

    `rows[inverse]` gives the batch back. The lookups of row `u` are `order[i]` for `starts[u] ≤ i < starts[u + 1]`, in
    the order of the batch.
    """

    rows: Tensor  # int64 [N], ascending, NO_ROW from position U on
    num: Tensor  # int32 [1], U
    inverse: Tensor  # int32 [N], -1 where the lookup has no row
    order: Tensor  # int32 [N], lookups without a row last
    starts: Tensor  # int32 [N + 1], equal to the number of lookups with a row from position U on
    block_rows: Tensor  # int32 [N / LOOKUPS_PER_BLOCK], the unique row at the beginning of each block of `order`


def unique_rows(rows: Tensor) -> UniqueRows:
    """The unique rows of int64 [N] rows, where NO_ROW is a lookup without a row."""
    if rows.is_cuda:
        from hotrows.ops.unique import kernel

        return UniqueRows(*kernel.unique_rows(rows))
    return UniqueRows(*reference.unique_rows(rows))
