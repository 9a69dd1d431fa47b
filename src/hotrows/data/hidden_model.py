"""The model from which synthetic labels are drawn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotrows.data.skew import NUM_QUANTILES
from hotrows.ops.hash_table.reference import mix
from hotrows.stores.init import GOLDEN, table_key

SPREAD = 1.4  # standard deviation of the logits: with it the hidden model itself has an AUC of about 0.8
_EFFECT_BITS = 20
_PAIR_BITS = 12
# Ids of smaller tables occur often enough that a model can learn their effects, so these effects are doubled.
_MAX_LEARNABLE_IDS = 100_000
_MIN_PAIRED_IDS = 10


class HiddenModel:
    """A click's logit is the sum of an effect of every id, of every dense value, and of some pairs of ids.

    The effect of an id is a hash of (seed, feature, id). The effect of a pair is the product of a second hash of each
    of its two ids, which a dot product of embeddings can learn and a linear model cannot. Scores are integers, so
    their sum is the same in any order and on any device; `calibrate` fixes the logit of a score.
    """

    def __init__(self, num_ids: Sequence[int], dense: NDArray[np.float32], seed: int, device: torch.device) -> None:
        self._device = device
        self._key = table_key(seed, "synthetic model")
        self._columns = torch.arange(len(num_ids), device=device)
        self._weights = torch.tensor([2 if n <= _MAX_LEARNABLE_IDS else 1 for n in num_ids], device=device)
        self._dense = self._dense_effects(dense, seed).to(device)
        paired = [f for f, n in enumerate(num_ids) if _MIN_PAIRED_IDS <= n <= _MAX_LEARNABLE_IDS]
        self._left = torch.tensor(paired[0 : len(paired) // 2 * 2 : 2], dtype=torch.int64, device=device)
        self._right = torch.tensor(paired[1::2], dtype=torch.int64, device=device)

    def score(self, ids: Tensor, which: Tensor) -> Tensor:
        """int64 [B] for ids [B, F] and indices [B, number of dense features] into the flat table of dense quantiles."""
        bits = mix((ids * self._columns.numel() + (self._columns + self._key)) * GOLDEN)
        score = ((bits >> (64 - _EFFECT_BITS)) * self._weights).sum(dim=1)
        score += self._dense.take(which).sum(dim=1)
        second = (bits & ((1 << _PAIR_BITS) - 1)) - (1 << (_PAIR_BITS - 1))
        return score.add_((second[:, self._left] * second[:, self._right]).sum(dim=1) >> 1)

    def calibrate(self, scores: Tensor, click_rate: float) -> None:
        """Fix the logit of a score: logits get the standard deviation SPREAD, and `click_rate` is the mean label."""
        x = scores.cpu().numpy().astype(np.float64)
        self._gain = SPREAD / float(x.std())
        low, high = -20.0 - self._gain * float(x.max()), 20.0 - self._gain * float(x.min())
        for _ in range(60):
            self._bias = (low + high) / 2
            if float(_sigmoid(self._gain * x + self._bias).mean()) < click_rate:
                low = self._bias
            else:
                high = self._bias
        share = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
        noise = np.log(share / (1 - share))
        thresholds = np.rint((noise - self._bias) / self._gain).astype(np.int64)
        self._thresholds = torch.from_numpy(thresholds).to(self._device)

    def label(self, scores: Tensor, noise: Tensor) -> Tensor:
        """float32 [B]: 1 where the logit is above logistic noise, which is given by its quantile."""
        return (scores > self._thresholds[noise]).float()

    def probability(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores.double() * self._gain + self._bias)

    def _dense_effects(self, dense: NDArray[np.float32], seed: int) -> Tensor:
        values = dense.astype(np.float64)
        values = (values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, keepdims=True)
        random = np.random.default_rng([seed % 2**64, dense.shape[0]])
        weights: NDArray[Any] = random.uniform(-1.0, 1.0, (dense.shape[0], 1))
        return torch.from_numpy(np.rint(values * weights * 2**_EFFECT_BITS / 2).astype(np.int64)).flatten()


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))
