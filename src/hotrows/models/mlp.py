"""Fully connected layers with the first values of the DLRM reference."""

import itertools
import math
from collections.abc import Sequence

from torch import nn


def mlp(sizes: Sequence[int], *, last_relu: bool = True) -> nn.Sequential:
    """Linear layers from sizes[0] to sizes[-1], a ReLU after each; after the last only if `last_relu`."""
    for size in sizes:
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"layer sizes are {list(sizes)}, they must be whole numbers from 1 up")
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        layers += [linear(num_in, num_out), nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


def linear(num_in: int, num_out: int) -> nn.Linear:
    """One linear layer: weights normal with std √(2/(in+out)), biases with std √(1/out)."""
    layer = nn.Linear(num_in, num_out)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (num_in + num_out)))
    nn.init.normal_(layer.bias, std=math.sqrt(1 / num_out))
    return layer
