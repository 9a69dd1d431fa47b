"""DeepFM: a factorization machine and an MLP over the same vectors (Guo et al. 2017)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotrows.models.base import Model
from hotrows.models.mlp import linear, mlp


class DeepFM(Model):
    """The sum of first-order weights, the dot products of all pairs of vectors, and an MLP over the vectors.

    A dense feature has a vector too, which is multiplied by its value. The first-order weight of an id is the last
    element of its row, so rows are dim + 1 wide: one table and one lookup are enough for all parts, and the optimizer
    state of the weight is part of the row's record.

    Args:
        dim: the width of the vectors.
        hidden: hidden layers of the deep part.
        dropout: in training, the share of the outputs of each hidden layer that are set to zero.
    """

    def __init__(
        self,
        num_dense: int,
        num_features: int,
        dim: int = 16,
        *,
        hidden: Sequence[int] = (400, 400, 400),
        dropout: float = 0.0,
    ) -> None:
        super().__init__(num_dense, num_features, dim + 1)
        self.first_order = linear(num_dense, 1) if num_dense else None
        self.dense_vectors = nn.Parameter(torch.empty(num_dense, dim).normal_(std=0.01)) if num_dense else None
        self.deep = mlp([(num_dense + num_features) * dim, *hidden, 1], last_relu=False, dropout=dropout)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        self.check(dense, embedded)
        vectors, weights = embedded[..., :-1], embedded[..., -1]  # [B, F, dim], [B, F]
        logits = weights.sum(1)
        if self.first_order is not None and self.dense_vectors is not None:
            logits = logits + self.first_order(dense).squeeze(1)
            vectors = torch.cat([dense.unsqueeze(2) * self.dense_vectors, vectors], dim=1)
        deep: Tensor = self.deep(vectors.flatten(1)).squeeze(1)
        return logits + all_pairs(vectors) + deep


def all_pairs(vectors: Tensor) -> Tensor:
    """The sum of the dot products of all pairs of vectors, [B, V, dim] → [B]: ½ ((Σv)² − Σv²), which is linear in V."""
    return 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
