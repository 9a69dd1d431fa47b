"""Pooled gather in plain PyTorch."""

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


def pool(
    cache: Tensor, slots: Tensor, offsets: Tensor | None, weights: Tensor | None, dim: int, mode: str
) -> tuple[Tensor, Tensor | None]:
    num_lookups = slots.numel()
    if offsets is None:
        offsets = torch.arange(num_lookups + 1, dtype=torch.int32, device=slots.device)
    has_slot = slots >= 0
    position = None
    if not bool(has_slot.all()):
        position = has_slot.nonzero().squeeze(1)
        before = torch.zeros(num_lookups + 1, dtype=torch.int32, device=slots.device)
        torch.cumsum(has_slot, 0, out=before[1:])
        slots, offsets = slots[position], before[offsets]
        weights = None if weights is None else weights[position]
    # Records are longer than their weights, and embedding_bag makes its weight contiguous: without this gather it would
    # copy the whole cache.
    values = cache[slots, :dim]
    if mode == "max":
        return _maximum(values, offsets, position)
    lookups = torch.arange(slots.numel(), dtype=torch.int32, device=slots.device)
    pooled = embedding_bag(lookups, values, offsets, mode=mode, per_sample_weights=weights, include_last_offset=True)
    return pooled, None


def _maximum(values: Tensor, offsets: Tensor, position: Tensor | None) -> tuple[Tensor, Tensor]:
    num_bags, dim = offsets.numel() - 1, values.shape[1]
    best = values.new_full((num_bags, dim), float("-inf"))
    winner = torch.full((num_bags, dim), -1, dtype=torch.int32, device=values.device)
    lengths = offsets[1:] - offsets[:-1]
    for step in range(int(lengths.max()) if num_bags else 0):
        bags = (lengths > step).nonzero().squeeze(1)
        lookup = offsets[bags] + step
        candidate = values[lookup]
        winner_lookup = (lookup if position is None else position[lookup]).int().unsqueeze(1)
        better = (candidate > best[bags]) | (winner[bags] < 0)
        winner[bags] = torch.where(better, winner_lookup, winner[bags])
        best[bags] = torch.where(better, candidate, best[bags])
    return torch.where(winner < 0, 0.0, best), winner
