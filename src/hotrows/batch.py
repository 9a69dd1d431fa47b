"""The batches that models train on, and ids in bags of varying length."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_INTEGER = (torch.int64, torch.int32)


@dataclass(frozen=True, eq=False)
class Jagged:
    """Bags of varying length: the bags of the first feature, sample by sample, then those of the second, …

    Args:
        values: the ids, int64 (or int32) [N], feature-major.
        lengths: the number of ids in each bag, [F, B].
        weights: one weight per id, float32 [N], for sum pooling only.

    Example: two features, three samples; the second feature has no id for the last sample::

        Jagged(torch.tensor([1, 2, 3, 10, 11, 12]), torch.tensor([[1, 1, 1], [2, 1, 0]]))
    """

    values: Tensor
    lengths: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        for name, given in (("values", self.values), ("lengths", self.lengths), ("weights", self.weights)):
            if not isinstance(given, Tensor) and not (name == "weights" and given is None):
                raise ValueError(f"Jagged: {name} are a {type(given).__name__}, give a tensor{to_tensor(given, name)}")
        if self.values.dim() != 1 or self.values.dtype not in _INTEGER:
            raise ValueError(
                f"Jagged: values are {self.values.dtype} {list(self.values.shape)}, give int64 (or int32) [N]"
            )
        if self.lengths.dim() != 2 or self.lengths.dtype not in _INTEGER:
            raise ValueError(
                f"Jagged: lengths are {self.lengths.dtype} {list(self.lengths.shape)}, give int64 (or int32) [F, B]"
            )
        if self.weights is not None and (
            not self.weights.is_floating_point() or self.weights.shape != self.values.shape
        ):
            raise ValueError(
                f"Jagged: weights are {self.weights.dtype} {list(self.weights.shape)}, give floats of the shape of "
                f"values, {list(self.values.shape)}"
            )
        if self.lengths.device.type == "cpu":
            if bool((self.lengths < 0).any()):
                raise ValueError(f"Jagged: a length is {int(self.lengths.min())}, lengths must be 0 or more")
            if int(self.lengths.sum()) != self.values.numel():
                raise ValueError(
                    f"Jagged: lengths add up to {int(self.lengths.sum())}, but there are {self.values.numel()} values"
                )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Jagged":
        return Jagged(
            self.values.to(device, non_blocking=non_blocking),
            self.lengths.to(device, non_blocking=non_blocking),
            None if self.weights is None else self.weights.to(device, non_blocking=non_blocking),
        )


def to_tensor(given: object, name: str) -> str:
    """For the error message about something that should be a tensor: how to make one of it, if PyTorch can.

    Args:
        name: what the user calls it.
    """
    if isinstance(given, np.ndarray):
        return f": torch.from_numpy({name})"
    return f": torch.tensor({name})" if isinstance(given, list | tuple | range) else ""


class Batch(NamedTuple):
    """One batch of a click log."""

    dense: Tensor  # float32 [B, number of dense features]
    ids: Tensor | Jagged  # int64 [B, F]
    label: Tensor  # float32 [B]
