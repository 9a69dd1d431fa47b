"""Rows padded with zeros, as long as the fast kernels of cuBLAS want them.

An operation whose answer goes into a linear layer can write such rows and answer the view of them without the padding:
it has the shape that everyone expects, and the layer, told so, takes the whole rows and copies nothing.
"""

import torch
from torch import Tensor

_LINE = 16  # bytes to which rows are aligned
_PADDED = 8  # numbers; sizes that are not aligned are padded to a multiple of it


def aligned(size: int, dtype: torch.dtype) -> int:
    """How many numbers a row of `size` has with its padding."""
    return size if size * dtype.itemsize % _LINE == 0 else -(-size // _PADDED) * _PADDED


def whole_rows(x: Tensor, dtype: torch.dtype) -> Tensor | None:
    """[B, size] with its padding; None where it has none or is not of the type in which it is multiplied."""
    width = aligned(x.shape[1], dtype)
    if x.dtype != dtype or width == x.shape[1] or x.stride() != (width, 1):
        return None
    return x.as_strided((x.shape[0], width), (width, 1))


def with_row_stride(x: Tensor) -> Tensor:
    """A matrix whose rows are without gaps; how far they are apart, its stride(0) tells."""
    return x if x.stride(1) == 1 else x.contiguous()
