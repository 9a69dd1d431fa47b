"""A linear layer and its ReLU in plain PyTorch."""

from torch import Tensor
from torch.nn import functional


def linear(x: Tensor, weight: Tensor, bias: Tensor, relu: bool, onto: Tensor | None = None) -> Tensor:
    out = functional.linear(x, weight, bias)
    out = functional.relu(out) if relu else out
    return out if onto is None else out + onto
