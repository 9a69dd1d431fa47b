"""Linear layers and their ReLUs in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from hotrows.dense.linear import Layer


def linear_layers(x: Tensor, layers: Sequence[Layer], onto: Tensor | None = None) -> Tensor:
    for weight, bias, relu in layers:
        x = functional.linear(x, weight, bias)
        x = functional.relu(x) if relu else x
    return x if onto is None else x + onto
