"""Dot interaction of DLRM: the dot product of every pair of a sample's vectors."""

import torch
from torch import Tensor

from hotrows.dense.interact import reference

_MAX_VECTORS = 64  # Their products fit into the registers of one program in any precision.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def interact(summary: Tensor | None, embedded: Tensor) -> Tensor:
    """The summary, then the dot product of each pair (i, j), j < i, of the V vectors [summary, embedded...].

    The pairs are in the order of `torch.tril_indices(V, V, -1)`: (1,0), (2,0), (2,1), (3,0), … Products have the type
    that autocast asks for if it is on, else the type of the summary, or of `embedded` without one; float32 products
    have the precision that is set for CUDA matrix products. Gradients have the types of their inputs. No sum depends on
    the order in which programs run or on the other samples of the batch, so the same sample gives the same bits.

    Args:
        summary: [B, D], or None: then V = F, otherwise V = F + 1.
        embedded: [B, F, D].

    Returns:
        [B, D + V(V-1)/2], without a summary [B, V(V-1)/2]; differentiable once on CUDA. There its rows may be further
        apart than they are long, with zeros between them, and `dense.linear` multiplies such rows without a copy.
    """
    if embedded.is_cuda:
        dtype = _dtype_of_products(summary, embedded)
        if _has_kernel(summary, embedded, dtype):
            from hotrows.dense.interact import kernel

            return kernel.interact(summary, embedded, dtype)
    return reference.interact(summary, embedded)


def _dtype_of_products(summary: Tensor | None, embedded: Tensor) -> torch.dtype:
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return embedded.dtype if summary is None else summary.dtype


def _has_kernel(summary: Tensor | None, embedded: Tensor, dtype: torch.dtype) -> bool:
    num_vectors = embedded.shape[1] + (summary is not None)
    given = embedded.dtype if summary is None else summary.dtype
    return num_vectors <= _MAX_VECTORS and all(kind in _DTYPES for kind in (embedded.dtype, given, dtype))
