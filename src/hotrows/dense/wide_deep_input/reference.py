"""The inputs of a Wide & Deep model in plain PyTorch."""

import torch
from torch import Tensor
from torch.nn import functional


def wide_deep_input(
    dense: Tensor, embedded: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    vectors, weights = embedded[..., :-1], embedded[..., -1]  # [B, F, D], [B, F]
    wide = weights.sum(1)
    if weight is not None:
        wide = wide + functional.linear(dense, weight, bias).squeeze(1)
    return torch.cat([dense, vectors.flatten(1)], dim=1), wide
