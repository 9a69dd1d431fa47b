"""An open-addressing hash table from row to cell, worked on by a whole batch at a time.

The table is one int64 array `keys` of M + 1 cells: a row, EMPTY or ERASED in the first M, BARRED in the last (a place
for writes that must not happen). A row is looked for from its hashed cell onwards, round the
end, until it or an EMPTY cell is met; the table is never full, so every search ends.
"""

from torch import Tensor

from hotrows.ops.hash_table import reference

EMPTY = -1
ERASED = -2
BARRED = -3


def find(keys: Tensor, rows: Tensor, num: Tensor) -> Tensor:
    """Cell of each of the first `num` rows, int64 [N]; -1 for rows that are absent, for NO_ROW and beyond `num`."""
    if keys.is_cuda:
        from hotrows.ops.hash_table import kernel

        return kernel.find(keys, rows, num)
    return reference.find(keys, rows, num)


def insert(keys: Tensor, rows: Tensor, num: Tensor) -> Tensor:
    """Claim a cell for each of the first `num` rows, int64 [N]; -1 for NO_ROW and beyond `num`.

    The rows must be distinct and absent from the table.
    """
    if keys.is_cuda:
        from hotrows.ops.hash_table import kernel

        return kernel.insert(keys, rows, num)
    return reference.insert(keys, rows, num)


def build(keys: Tensor, position_at: Tensor, cell_of: Tensor, rows: Tensor) -> None:
    """Make the table anew, of distinct rows and nothing else.

    Args:
        position_at: int32 [M + 1], for each cell where its row is in `rows`, -1 where it has none.
        cell_of: int32, longer than `rows`: for each of these its cell, -1 for NO_ROW.
    """
    if keys.is_cuda:
        from hotrows.ops.hash_table import kernel

        kernel.build(keys, position_at, cell_of, rows)
    else:
        reference.build(keys, position_at, cell_of, rows)
