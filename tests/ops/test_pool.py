"""Pooled gather: the kernel against the reference."""

import pytest
import torch

from hotrows.ops.pool import kernel, reference
from hotrows.ops.rows import NO_SLOT

MODES = ["sum", "mean", "max"]


def check(device, cache, slots, offsets, weights, dim, mode):
    expected, expected_winner = reference.pool(cache, slots, offsets, weights, dim, mode)
    on_device = [None if t is None else t.to(device) for t in (cache, slots, offsets, weights)]
    pooled, winner = kernel.pool(*on_device, dim, mode)
    torch.testing.assert_close(pooled.cpu(), expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert (winner is None) == (expected_winner is None)
    if winner is not None:
        assert winner.dtype == torch.int32
        assert torch.equal(winner.cpu(), expected_winner)


def bags(lengths, random, missing=0.2, num_slots=50):
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.as_tensor(lengths).cumsum(0)]).int()
    slots = torch.randint(num_slots, (int(offsets[-1]),), generator=random).int()
    slots[torch.rand(slots.numel(), generator=random) < missing] = NO_SLOT
    return slots, offsets


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dim", [1, 3, 4, 16, 100, 128])
@pytest.mark.parametrize("num_lookups", [0, 1, 7, 1000])
def test_one_lookup_a_bag(num_lookups, dim, mode, device, random):
    cache = torch.randn(50, 2 * dim, generator=random)  # the state follows the weights
    slots, _ = bags([num_lookups], random)
    check(device, cache, slots, None, None, dim, mode)
    if mode == "sum":
        check(device, cache, slots, None, torch.randn(num_lookups, generator=random), dim, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("num_bags", "dim"), [(0, 4), (1, 1), (7, 1), (7, 3), (100, 4), (100, 16), (100, 100), (50, 128), (3, 1500)]
)
def test_bags(num_bags, dim, mode, device, random):
    cache = torch.randn(50, dim + 4, generator=random)
    slots, offsets = bags(torch.randint(6, (num_bags,), generator=random), random)
    check(device, cache, slots, offsets, None, dim, mode)
    if mode == "sum":
        check(device, cache, slots, offsets, torch.randn(slots.numel(), generator=random), dim, mode)


@pytest.mark.parametrize("mode", MODES)
def test_bags_without_rows(mode, device, random):
    cache = torch.randn(50, 4, generator=random)
    check(device, cache, *bags([0, 0, 0], random), None, 4, mode)
    check(device, cache, *bags([0, 3, 0, 2, 0], random, missing=1.0), None, 4, mode)


@pytest.mark.parametrize("mode", MODES)
def test_one_long_bag(mode, device, random):
    cache = torch.randn(50, 16, generator=random)
    check(device, cache, *bags([2, 300, 1], random), None, 16, mode)


def test_first_of_equal_values_wins(device):
    cache = torch.tensor([[1.0, 2.0], [1.0, 3.0], [0.0, 3.0]])
    slots = torch.tensor([NO_SLOT, 2, 0, 1, 0], dtype=torch.int32)
    offsets = torch.tensor([0, 5], dtype=torch.int32)
    check(device, cache, slots, offsets, None, 2, "max")


@pytest.mark.parametrize("mode", MODES)
def test_not_finite(mode, device):
    nan, inf = float("nan"), float("inf")
    cache = torch.tensor([[nan, -inf], [1.0, -inf], [inf, nan]])
    slots = torch.tensor([0, 1, 2, 1, 0, 2, NO_SLOT], dtype=torch.int32)
    offsets = torch.tensor([0, 3, 5, 7], dtype=torch.int32)
    check(device, cache, slots, offsets, None, 2, mode)
