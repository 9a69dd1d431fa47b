"""DLRM: dot products between all pairs of features (Naumov et al. 2019)."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from hotrows.dense.interact import interact
from hotrows.models.base import Model
from hotrows.models.mlp import apply_mlp, mlp


class Sizes(NamedTuple):
    """The hidden layers of a paper's DLRM. The bottom MLP's last layer has `dim` outputs and the top one's has 1."""

    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]


SIZES = {
    "freqcache": Sizes(128, (512, 256), (1024, 1024, 512, 256)),
    "cdlrm": Sizes(64, (512, 256), (512, 512, 256)),  # in its experiments on one GPU
    "cdlrm-mlperf": Sizes(128, (512, 256), (1024, 1024, 512, 256)),  # in its experiments on several GPUs
    "rmc2": Sizes(16, (512, 256, 64), (512, 256)),  # FAE, Criteo Kaggle
    "rmc3": Sizes(64, (512, 256), (512, 512, 256)),  # FAE, Criteo Terabyte
}


class DLRM(Model):
    """A bottom MLP maps the dense features to one more vector; a top MLP reads it and the dot products of all pairs.

    Without dense features there is no bottom MLP, and the top one reads only the dot products. The default sizes are
    those of the DLRM reference code for Criteo Kaggle.

    Args:
        dim: the width of the rows and of the bottom MLP's last layer.
        bottom, top: hidden layers of the two MLPs.
        dropout: in training, the share of the outputs of each hidden layer of the top MLP that are set to zero.
    """

    def __init__(
        self,
        num_dense: int,
        num_features: int,
        dim: int = 16,
        *,
        bottom: Sequence[int] = (512, 256, 64),
        top: Sequence[int] = (512, 256),
        dropout: float = 0.0,
    ) -> None:
        super().__init__(num_dense, num_features, dim)
        num_vectors = num_features + (num_dense > 0)
        if num_vectors < 2:
            raise ValueError(
                "DLRM: one categorical column and no dense feature leave no pair to multiply; give it more columns, or "
                "use another model"
            )
        self.bottom = mlp([num_dense, *bottom, dim]) if num_dense else None
        num_pairs = num_vectors * (num_vectors - 1) // 2
        num_inputs = num_pairs + (dim if num_dense else 0)
        self.top = mlp([num_inputs, *top, 1], last_relu=False, dropout=dropout)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        self.check(dense, embedded)
        summary = None if self.bottom is None else self.bottom(dense)  # [B, D]
        return apply_mlp(self.top, interact(summary, embedded)).squeeze(1)
