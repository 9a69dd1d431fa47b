"""Fully connected layers with the first values of the DLRM reference."""

import itertools
import math
from collections.abc import Sequence
from typing import TypeGuard

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from hotrows.dense.linear import Layer, linear_layers


class MLP(nn.Sequential):
    """A sequence in which linear layers and their ReLUs are one operation, unless someone looks in between."""

    def forward(self, input: Tensor, padded: bool = False, onto: Tensor | None = None) -> Tensor:
        """What the layers make of the input, and `onto` added to it.

        Args:
            padded: `ops.linear` may take what is between the input's rows for zeros.
            onto: of the answer's shape.
        """
        modules = list(self)
        place = 0
        while place < len(modules):
            layers, start = [], place
            while place < len(modules) and is_plain_linear(module := modules[place]):
                relu = place + 1 < len(modules) and is_plain(modules[place + 1], nn.ReLU)
                layers.append(Layer(module.weight, module.bias, relu))
                place += 2 if relu else 1
            if layers:
                last = onto if place == len(modules) else None
                input = linear_layers(input, layers, padded=padded and start == 0, onto=last)
                onto = None if last is not None else onto
            else:
                input = modules[place](input)
                place += 1
        return input if onto is None else input + onto


def mlp(sizes: Sequence[int], *, last_relu: bool = True) -> MLP:
    """Linear layers from sizes[0] to sizes[-1], a ReLU after each; after the last only if `last_relu`."""
    for size in sizes:
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"layer sizes are {list(sizes)}, they must be whole numbers from 1 up")
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        layers += [linear(num_in, num_out), nn.ReLU()]
    return MLP(*(layers if last_relu else layers[:-1]))


def linear(num_in: int, num_out: int) -> nn.Linear:
    """One linear layer: weights normal with std √(2/(in+out)), biases with std √(1/out)."""
    layer = nn.Linear(num_in, num_out)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (num_in + num_out)))
    nn.init.normal_(layer.bias, std=math.sqrt(1 / num_out))
    return layer


def apply_mlp(layers: nn.Module, rows: Tensor, onto: Tensor | None = None) -> Tensor:
    """What the layers make of rows that an operation may have padded, and `onto` added to it.

    Whoever looks at the layers as a whole sees them called with the rows alone.
    """
    out: Tensor
    if is_plain(layers, MLP):
        out = layers(rows, padded=True, onto=onto)
        return out
    out = layers(rows)
    return out if onto is None else out + onto


def is_plain_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether to call it is x·Wᵀ + b and nothing else."""
    return isinstance(layer, nn.Linear) and layer.bias is not None and is_plain(layer, nn.Linear)


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether to call it is nothing but the forward pass of its kind."""
    if type(layer) is not kind or "forward" in layer.__dict__:
        return False
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return not any(hooks) and not _has_any_global_hook()  # type: ignore[no-untyped-call]
