"""Dot interaction in plain PyTorch."""

import torch
from torch import Tensor


def interact(summary: Tensor | None, embedded: Tensor) -> Tensor:
    if summary is None:
        return _pairs(embedded)
    vectors = torch.cat([summary.unsqueeze(1), embedded.to(summary.dtype)], dim=1)  # [B, V, D]
    return torch.cat([summary, _pairs(vectors)], dim=1)


def _pairs(vectors: Tensor) -> Tensor:
    """The dot product of each pair of vectors once, [B, V, D] → [B, V(V-1)/2]."""
    num_vectors = vectors.shape[1]
    products = torch.bmm(vectors, vectors.transpose(1, 2))
    i, j = torch.tril_indices(num_vectors, num_vectors, offset=-1, device=vectors.device)
    # The backward pass of index_select writes each number once, so that sums have one order on a GPU too.
    return products.flatten(1).index_select(1, i * num_vectors + j)
