"""Wide & Deep: a linear model and an MLP side by side (Cheng et al. 2016)."""

from collections.abc import Sequence

from torch import Tensor

from hotrows.dense.wide_deep_input import wide_deep_input
from hotrows.models.base import Model
from hotrows.models.mlp import apply_mlp, is_plain_linear, linear, mlp


class WideDeep(Model):
    """The wide part has one weight per id and per dense feature; the deep part is an MLP over all vectors.

    The wide weight of an id is the last element of its row, so rows are dim + 1 wide: one table and one lookup are
    enough for both parts, and the optimizer state of the weight is part of the row's record. Crossed columns are
    columns like all others: add them when preparing the data.

    Args:
        dim: the width of the vectors that the deep part reads.
        hidden: hidden layers of the deep part.
        dropout: in training, the share of the outputs of each hidden layer that are set to zero.
    """

    def __init__(
        self,
        num_dense: int,
        num_features: int,
        dim: int = 16,
        *,
        hidden: Sequence[int] = (1024, 512, 256),
        dropout: float = 0.0,
    ) -> None:
        super().__init__(num_dense, num_features, dim + 1)
        self.wide = linear(num_dense, 1) if num_dense else None
        self.deep = mlp([num_dense + num_features * dim, *hidden, 1], last_relu=False, dropout=dropout)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        self.check(dense, embedded)
        if self.wide is not None and is_plain_linear(self.wide):
            deep, wide = wide_deep_input(dense, embedded, self.wide.weight, self.wide.bias)
        else:
            deep, wide = wide_deep_input(dense, embedded)
            if self.wide is not None:
                wide = wide + self.wide(dense).squeeze(1)
        return apply_mlp(self.deep, deep, onto=wide.unsqueeze(1)).squeeze(1)
