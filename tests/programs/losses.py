"""The loss of a forward pass. It gives every output its own gradient."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hotrows.nn.lookups import on_device
from tests.programs.naive import Array
from tests.programs.operations import Forward

# The loss of an output is linear but for this slope. A steep slope would make training overshoot where the optimizer
# amplifies gradients near zero, and overshooting steps multiply rounding errors.
SLOPE = 0.01


def pull_of(seed: int, feature: int, shape: Sequence[int]) -> Array:
    """The linear part of the loss of one feature's output, float32 [B, D]. It stays away from zero."""
    random = np.random.default_rng((seed, feature))
    return (random.uniform(0.1, 0.5, shape) * random.choice([-1, 1], shape)).astype(np.float32)


def pulls_of(seed: int, outputs: Sequence[Tensor]) -> list[Tensor]:
    return [
        on_device(torch.from_numpy(pull_of(seed, number, out.shape)), out.device) for number, out in enumerate(outputs)
    ]


def loss_of(outputs: Sequence[Tensor], pulls: Sequence[Tensor]) -> Tensor:
    """The sum of the losses of the outputs of some features."""
    losses = [
        ((pull + 0.5 * SLOPE * out) * out).sum() / max(1, out.shape[0])
        for out, pull in zip(outputs, pulls, strict=True)
    ]
    return torch.stack(losses).sum()


class LibraryOpen:
    """A forward pass of the library, with its loss. Nothing but its own fields keeps the autograd graph alive."""

    def __init__(self, outputs: list[Tensor], operation: Forward, weights: Tensor | None) -> None:
        self.weights = weights
        outputs = outputs[:1] if operation.first_only else outputs
        pulls = pulls_of(operation.seed, outputs)
        self._outputs: list[Tensor] = []
        self._pulls: list[Tensor] = []
        self._loss: Tensor | None = None
        if operation.early_loss:
            self._loss = loss_of(outputs, pulls)
        else:
            self._outputs, self._pulls = outputs, pulls

    def loss(self) -> Tensor:
        return loss_of(self._outputs, self._pulls) if self._loss is None else self._loss
