"""Bounded Zipf-distributed rows. Their numbers are random, so that a row's number does not reveal its rank."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Zipf:
    """Draws rows 0 … num_rows − 1. The probability of the row of rank k is in proportion to k^−exponent."""

    def __init__(self, num_rows: int, exponent: float, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        weight = torch.arange(1, num_rows + 1, dtype=torch.float64) ** -exponent
        self._cumulative = torch.cumsum(weight / weight.sum(), 0)
        self._row_of_rank = torch.randperm(num_rows, generator=self._generator)

    @property
    def counts(self) -> Tensor:
        """The expected counts of the rows up to a factor, [num_rows]. Past data cannot predict better."""
        counts = torch.empty(self._row_of_rank.numel())
        counts[self._row_of_rank] = torch.arange(counts.numel(), 0, -1, dtype=counts.dtype)
        return counts

    def draw(self, shape: Sequence[int]) -> Tensor:
        """Draw rows, int64 of this shape."""
        drawn = torch.rand(tuple(shape), dtype=torch.float64, generator=self._generator)
        rank = torch.searchsorted(self._cumulative, drawn).clamp(max=self._row_of_rank.numel() - 1)
        return self._row_of_rank[rank]


def draw_ranks(sizes: Sequence[int], shape: Sequence[int], exponent: float, generator: torch.Generator) -> Tensor:
    """Draw int64 [*shape, F] on the generator's device. Column t is Zipf-distributed over 0 … sizes[t] − 1, 0 first.

    It inverts the continuous distribution, which takes no memory in proportion to the sizes.
    """
    ranks = torch.empty(*shape, len(sizes), dtype=torch.int64, device=generator.device)
    for column, size in enumerate(sizes):
        uniform = torch.rand(tuple(shape), dtype=torch.float64, device=generator.device, generator=generator)
        drawn = (1 - uniform * (1 - float(size) ** (1 - exponent))) ** (1 / (1 - exponent))
        ranks[..., column] = drawn.long().clamp_(1, size) - 1
    return ranks
