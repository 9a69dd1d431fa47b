"""Fully connected layers with the initial weights of the DLRM reference code."""

import itertools
import math
from collections.abc import Sequence
from typing import TypeGuard

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from hotrows.dense.linear import Layer, linear_layers


class MLP(nn.Sequential):
    """An `nn.Sequential` that fuses successive linear layers and ReLUs into one operation, except those with hooks."""

    def forward(self, input: Tensor, padded: bool = False, onto: Tensor | None = None) -> Tensor:
        """The output of the layers, plus `onto`.

        Args:
            padded: the memory between the rows of a strided input holds zeros, which `dense.linear` may then read.
            onto: a tensor of the output's shape.
        """
        modules = [module for module in self if not _does_nothing(module)]
        index = 0
        while index < len(modules):
            layers, start = [], index
            while index < len(modules) and is_plain_linear(module := modules[index]):
                relu = index + 1 < len(modules) and is_plain(modules[index + 1], nn.ReLU)
                layers.append(Layer(module.weight, module.bias, relu))
                index += 2 if relu else 1
            if layers:
                last = onto if index == len(modules) else None
                input = linear_layers(input, layers, padded=padded and start == 0, onto=last)
                onto = None if last is not None else onto
            else:
                input = modules[index](input)
                index += 1
        return input if onto is None else input + onto


def mlp(sizes: Sequence[int], *, last_relu: bool = True, dropout: float = 0.0) -> MLP:
    """Linear layers from sizes[0] to sizes[-1], with a ReLU after each; after the last one only if `last_relu`.

    Args:
        dropout: in training, the share of the outputs of each ReLU that are set to zero; 0 for no such layers.
    """
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout!r}, it must be from 0 to less than 1")
    for size in sizes:
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"layer sizes are {list(sizes)}, they must be whole numbers from 1 up")
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        layers += [linear(num_in, num_out), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return MLP(*(layers if last_relu else layers[: -2 if dropout else -1]))


def linear(num_in: int, num_out: int) -> nn.Linear:
    """One linear layer: its weights are normal with std √(2/(in+out)), its biases with std √(1/out)."""
    layer = nn.Linear(num_in, num_out)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (num_in + num_out)))
    nn.init.normal_(layer.bias, std=math.sqrt(1 / num_out))
    return layer


def apply_mlp(layers: nn.Module, rows: Tensor, onto: Tensor | None = None) -> Tensor:
    """The output of the layers plus `onto`, for rows that an operation may have padded.

    If `layers` has hooks or is not exactly an `MLP`, it is called with the rows only, as its hooks or class expect.
    """
    out: Tensor
    if is_plain(layers, MLP):
        out = layers(rows, padded=True, onto=onto)
        return out
    out = layers(rows)
    return out if onto is None else out + onto


def is_plain_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """True if calling the layer computes x·Wᵀ + b and does nothing else."""
    return isinstance(layer, nn.Linear) and layer.bias is not None and is_plain(layer, nn.Linear)


def _does_nothing(layer: nn.Module) -> bool:
    """True for dropout outside of training, so that the layers around it are fused."""
    return isinstance(layer, nn.Dropout) and not layer.training and is_plain(layer, nn.Dropout)


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """True if calling the layer only runs the forward method of exactly this class: no subclass, no hooks."""
    if type(layer) is not kind or "forward" in layer.__dict__:
        return False
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return not any(hooks) and not _has_any_global_hook()  # type: ignore[no-untyped-call]
