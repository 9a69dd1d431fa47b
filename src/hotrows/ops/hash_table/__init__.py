"""An open-addressing hash table from row to cell. Its operations take a whole batch of rows at a time.

The table is one int64 array `keys` of M + 1 cells. The first M cells hold a row, EMPTY or ERASED. The last cell holds
BARRED and takes writes that must not happen. A search for a row begins at the cell of its hash and goes from cell to
cell, from the last one on to the first, until it finds the row or an EMPTY cell. Every search ends, because the table
is never full.
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

    The rows must be unique, and absent from the table.
    """
    if keys.is_cuda:
        from hotrows.ops.hash_table import kernel

        return kernel.insert(keys, rows, num)
    return reference.insert(keys, rows, num)


def build(keys: Tensor, position_at: Tensor, cell_of: Tensor, rows: Tensor) -> None:
    """Build the table from unique rows, whatever it held before.

    Args:
        position_at: int32 [M + 1], the position in `rows` of each cell's row, -1 for a cell without a row.
        cell_of: int32, longer than `rows`, the cell of each row, -1 for NO_ROW.
    """
    if keys.is_cuda:
        from hotrows.ops.hash_table import kernel

        kernel.build(keys, position_at, cell_of, rows)
    else:
        reference.build(keys, position_at, cell_of, rows)
