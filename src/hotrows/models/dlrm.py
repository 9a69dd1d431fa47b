"""DLRM: dot products between all pairs of features (Naumov et al. 2019)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hotrows.models.base import Model
from hotrows.models.mlp import mlp


class Sizes(NamedTuple):
    """The layers of a paper's DLRM. The bottom MLP ends with `dim`, the top one with 1: neither is listed."""

    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]


SIZES = {
    "freqcache": Sizes(128, (512, 256), (1024, 1024, 512, 256)),
    "cdlrm": Sizes(64, (512, 256), (512, 512, 256)),  # on one GPU
    "cdlrm-mlperf": Sizes(128, (512, 256), (1024, 1024, 512, 256)),  # on several
    "rmc2": Sizes(16, (512, 256, 64), (512, 256)),  # FAE, Criteo Kaggle
    "rmc3": Sizes(64, (512, 256), (512, 512, 256)),  # FAE, Criteo Terabyte
}


class DLRM(Model):
    """A bottom MLP makes one more vector of the dense features; a top MLP reads it and all pairs' dot products.

    Without dense features there is no bottom MLP, and the top one reads the dot products alone. The default sizes are
    those of the reference for Criteo Kaggle.

    Args:
        dim: width of the rows, and of the bottom MLP's last layer.
        bottom, top: hidden layers of the two MLPs.
    """

    pairs: Tensor

    def __init__(
        self,
        num_dense: int,
        num_features: int,
        dim: int = 16,
        *,
        bottom: Sequence[int] = (512, 256, 64),
        top: Sequence[int] = (512, 256),
    ) -> None:
        super().__init__(num_dense, num_features, dim)
        num_vectors = num_features + (num_dense > 0)
        if num_vectors < 2:
            raise ValueError(
                "DLRM: one categorical column and no dense feature leave no pair to multiply; give it more columns, or "
                "use another model"
            )
        self.bottom = mlp([num_dense, *bottom, dim]) if num_dense else None
        # the places of the pairs (i, j), j < i, in a flattened [V, V]; not in the state_dict, they follow from V
        i, j = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self.register_buffer("pairs", i * num_vectors + j, persistent=False)
        num_inputs = self.pairs.numel() + (dim if num_dense else 0)
        self.top = mlp([num_inputs, *top, 1], last_relu=False)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        self.check(dense, embedded)
        if self.bottom is None:
            return self._logits([self._interact(embedded)])
        summary = self.bottom(dense)  # [B, D]
        vectors = torch.cat([summary.unsqueeze(1), embedded.to(summary.dtype)], dim=1)  # [B, V, D]
        return self._logits([summary, self._interact(vectors)])

    def _interact(self, vectors: Tensor) -> Tensor:
        """The dot product of each pair of vectors once, [B, V, D] → [B, V(V-1)/2]."""
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        # by index_select: its backward writes each place once, so that the sum has one order on a GPU too
        return products.flatten(1).index_select(1, self.pairs)

    def _logits(self, inputs: list[Tensor]) -> Tensor:
        logits: Tensor = self.top(torch.cat(inputs, dim=1))
        return logits.squeeze(1)
