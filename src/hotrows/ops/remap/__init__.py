"""Rows by another numbering, read from a map on the host."""

from torch import Tensor

from hotrows.ops.remap import reference


def remap(rows: Tensor, num: Tensor, row_of: Tensor) -> Tensor:
    """row_of[rows], int64 [N]; NO_ROW where there is none, and beyond the first `num`.

    Args:
        rows: int64 [N]. num: int32 [1].
        row_of: int32 or int64 [R] on the host (registered on a CUDA machine), so that no device memory grows with it.
    """
    if rows.is_cuda:
        from hotrows.ops.remap import kernel

        return kernel.remap(rows, num, row_of)
    return reference.remap(rows, num, row_of)
