"""Deep & Cross networks: explicit products of features up to a given degree (Wang et al. 2017, v2 in 2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotrows.models.base import Model
from hotrows.models.mlp import linear, mlp


class VectorCross(nn.Module):
    """The cross layer of DCN: x0 · (wᵀ x) + b + x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width).normal_(std=width**-0.5))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        return first * (x @ self.weight).unsqueeze(1) + self.bias + x


class MatrixCross(nn.Module):
    """The cross layer of DCN-v2: x0 ∘ (W x + b) + x, with W = U Vᵀ of the given rank, or a full W for None."""

    def __init__(self, width: int, rank: int | None) -> None:
        super().__init__()
        if rank is not None and (not isinstance(rank, int) or not 1 <= rank < width):
            raise ValueError(
                f"DCN-v2: rank is {rank!r}, it must be a whole number from 1 to {width - 1} (there are {width} "
                "inputs), or None for a whole matrix"
            )
        self.narrow = None if rank is None else nn.Linear(width, rank, bias=False)
        self.weight = linear(width if rank is None else rank, width)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        inner = x if self.narrow is None else self.narrow(x)
        product: Tensor = first * self.weight(inner)
        return product + x


class DCN(Model):
    """Cross layers and an MLP side by side over all inputs; a linear layer reads both.

    Args:
        dim: the width of the rows.
        num_cross: number of cross layers; they form products of up to num_cross + 1 features.
        hidden: hidden layers of the MLP.
        dropout: in training, the share of the outputs of each hidden layer that are set to zero.
    """

    def __init__(
        self,
        num_dense: int,
        num_features: int,
        dim: int = 16,
        *,
        num_cross: int = 6,
        hidden: Sequence[int] = (1024, 1024),
        dropout: float = 0.0,
    ) -> None:
        super().__init__(num_dense, num_features, dim)
        width = num_dense + num_features * dim
        _check_number_of_layers(num_cross)
        self.cross = nn.ModuleList(VectorCross(width) for _ in range(num_cross))
        self.deep = mlp([width, *hidden], dropout=dropout)
        self.last = linear(width + (hidden[-1] if hidden else width), 1)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        self.check(dense, embedded)
        first = torch.cat([dense, embedded.flatten(1)], dim=1)
        logits: Tensor = self.last(torch.cat([_crossed(self.cross, first), self.deep(first)], dim=1))
        return logits.squeeze(1)


class DCNv2(Model):
    """Cross layers with matrices, and an MLP that reads their output.

    Args:
        dim: the width of the rows.
        num_cross: number of cross layers; they form products of up to num_cross + 1 features.
        rank: the rank of the cross layers' matrices; None for full ones with (num_dense + num_features · dim)² weights.
        hidden: hidden layers of the MLP.
        dropout: in training, the share of the outputs of each hidden layer that are set to zero.
    """

    def __init__(
        self,
        num_dense: int,
        num_features: int,
        dim: int = 16,
        *,
        num_cross: int = 3,
        rank: int | None = None,
        hidden: Sequence[int] = (1024, 1024),
        dropout: float = 0.0,
    ) -> None:
        super().__init__(num_dense, num_features, dim)
        width = num_dense + num_features * dim
        _check_number_of_layers(num_cross)
        self.cross = nn.ModuleList(MatrixCross(width, rank) for _ in range(num_cross))
        self.deep = mlp([width, *hidden, 1], last_relu=False, dropout=dropout)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        self.check(dense, embedded)
        first = torch.cat([dense, embedded.flatten(1)], dim=1)
        logits: Tensor = self.deep(_crossed(self.cross, first))
        return logits.squeeze(1)


def _check_number_of_layers(num_cross: int) -> None:
    if not isinstance(num_cross, int) or num_cross < 0:
        raise ValueError(f"num_cross is {num_cross!r}, it must be a whole number from 0 up")


def _crossed(layers: nn.ModuleList, first: Tensor) -> Tensor:
    x = first
    for layer in layers:
        x = layer(first, x)
    return x
