"""Ids that become popular and others that are forgotten, day by day."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN_SECTION = 0.381966


class Drift:
    """Which id has which rank in popularity, by day.

    With a share of 1/m, the ranks r, r + m, r + 2m, … change ids on the days d ≡ r mod m: there the ids of the most
    popular ranks go far down, and rare ones come up. The others keep theirs, so from day to day about this share of
    ids, and of lookups, is new. Shares in between are rounded to the next 1/m.
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
        """The id of every rank of a feature; a slice of all of them where ids are ranks."""
        if not self._num_classes:
            return slice(None)
        num_ids = self._num_ids[feature].cpu()
        ids: NDArray[np.int64] = self._ids(torch.arange(int(num_ids)), torch.tensor(day), num_ids).numpy()
        return ids

    def _ids(self, ranks: Tensor, days: Tensor, num_ids: Tensor) -> Tensor:
        m = self._num_classes
        number, place = ranks % m, ranks // m
        size = (num_ids - number + m - 1) // m  # ranks of this class
        step = (size.double() * _GOLDEN_SECTION).long().clamp(min=1)
        times = (days - number) // m + (number > 0).long()  # changes since day 0
        return (place + times * step) % size * m + number
