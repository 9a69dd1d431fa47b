"""Row numbers in another numbering, read from a map in host memory."""

from torch import Tensor

from hotrows.ops.remap import reference


def remap(rows: Tensor, num: Tensor, row_of: Tensor) -> Tensor:
    """row_of[rows], int64 [N]; NO_ROW where a row is NO_ROW, and beyond the first `num`.

    Args:
        rows: int64 [N]. num: int32 [1].
        row_of: int32 or int64 [R] in host memory, so that it takes no device memory. With CUDA it must be pinned.
    """
    if rows.is_cuda:
        from hotrows.ops.remap import kernel

        return kernel.remap(rows, num, row_of)
    return reference.remap(rows, num, row_of)
