"""Rows padded with zeros to a length that the fast kernels of cuBLAS need.

An operation whose output goes into a linear layer can write such rows and return the view of them without the padding.
The view has the shape that everyone expects, and a layer that knows of the padding multiplies the padded rows without
copying them.
"""

import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes
_MULTIPLE = 8  # Sizes that are not aligned are padded to a multiple of this many numbers.


def aligned(size: int, dtype: torch.dtype) -> int:
    """How many numbers a row of `size` numbers has with its padding."""
    return size if size * dtype.itemsize % _ALIGNMENT == 0 else -(-size // _MULTIPLE) * _MULTIPLE


def padded_rows(x: Tensor, dtype: torch.dtype) -> Tensor | None:
    """x, [B, size], with its padding. None if it has no padding, or another type than the one it is multiplied in."""
    width = aligned(x.shape[1], dtype)
    if x.dtype != dtype or width == x.shape[1] or x.stride() != (width, 1):
        return None
    return x.as_strided((x.shape[0], width), (width, 1))


def with_row_stride(x: Tensor) -> Tensor:
    """The matrix, copied unless the numbers of each row are adjacent. stride(0) says how far the rows are apart."""
    return x if x.stride(1) == 1 else x.contiguous()
