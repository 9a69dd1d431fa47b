"""Drift of popularity: from day to day some ids become popular and others rare."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN_SECTION = 0.381966


class Drift:
    """The map from popularity ranks to ids, which changes by day.

    With a share of 1/m, the ranks r, r + m, r + 2m, … get new ids on the days d ≡ r mod m: the ids of the most popular
    of these ranks move far down, and rare ones move up. All other ranks keep their ids, so about this share of ids, and
    of lookups, is new each day. Other shares are rounded to the nearest 1/m.
    """

    def __init__(self, num_ids: Sequence[int], share: float, device: torch.device) -> None:
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"drift is {share:g}, it must be from 0 to 1")
        self._num_ids = torch.tensor(num_ids, device=device)
        self._num_classes = round(1 / share) if share > 1e-9 else 0

    def __call__(self, ranks: Tensor, days: Tensor) -> Tensor:
        """The ids of ranks [B, F] on days [B]."""
        if not self._num_classes:
            return ranks
        return self._ids(ranks, days.unsqueeze(1), self._num_ids)

    def ids_of_day(self, feature: int, day: int) -> NDArray[np.int64] | slice:
        """The id of every rank of a feature, or without drift, where ids are ranks, a slice of all."""
        if not self._num_classes:
            return slice(None)
        num_ids = self._num_ids[feature].cpu()
        ids: NDArray[np.int64] = self._ids(torch.arange(int(num_ids)), torch.tensor(day), num_ids).numpy()
        return ids

    def _ids(self, ranks: Tensor, days: Tensor, num_ids: Tensor) -> Tensor:
        m = self._num_classes
        residue, position = ranks % m, ranks // m
        size = (num_ids - residue + m - 1) // m  # ranks of this class
        step = (size.double() * _GOLDEN_SECTION).long().clamp(min=1)
        times = (days - residue) // m + (residue > 0).long()  # changes since day 0
        return (position + times * step) % size * m + residue
