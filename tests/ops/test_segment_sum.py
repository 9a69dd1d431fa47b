"""Segment sum: the kernels against the reference, and their bits from run to run."""

import pytest
import torch

from hotrows.ops.backward_update import kernel as sums
from hotrows.ops.rows import NO_ROW
from hotrows.ops.segment_sum import kernel, reference
from hotrows.ops.unique.reference import unique_rows


def check(device, grad, rows, bag_of=None, scale=None, winner=None):
    _, num, _, order, starts, *_ = unique_rows(rows)
    exact_scale = None if scale is None else scale.double()
    expected = reference.segment_sum(grad.double(), order, starts, num, bag_of, exact_scale, winner).float()
    arguments = (grad, order, starts, num, bag_of, scale, winner)
    found = kernel.segment_sum(*(None if t is None else t.to(device) for t in arguments))
    assert found.shape == (rows.numel(), grad.shape[1])
    torch.testing.assert_close(found[: int(num)].cpu(), expected, rtol=1e-5, atol=1e-5)


def rows_with_one_hot(num_lookups, num_hot, random):
    """A batch in which one row in the middle has most of the lookups."""
    rows = torch.randint(1000, (num_lookups,), generator=random)
    rows[torch.randperm(num_lookups, generator=random)[:num_hot]] = 500
    return rows


# Long batches have narrow rows and short ones wide rows, because the interpreter is slow in both.
@pytest.mark.parametrize(
    ("num_lookups", "dim"),
    [(0, 4), (1, 1), (1, 128), (7, 3), (7, 16), (17, 100), (17, 128), (1000, 1), (300, 3), (300, 4)],
)
@pytest.mark.parametrize("num_rows", [1, 20, 10**6])
def test_matches_reference(num_lookups, dim, num_rows, device, random):
    rows = torch.randint(num_rows, (num_lookups,), generator=random)
    rows[torch.rand(num_lookups, generator=random) < 0.1] = NO_ROW
    check(device, torch.randn(num_lookups, dim, generator=random), rows)


def test_rows_wider_than_a_program(device, random, monkeypatch):
    monkeypatch.setattr(sums, "_MAX_WORDS_PER_PROGRAM", 4)
    check(device, torch.randn(100, 10, generator=random), torch.randint(7, (100,), generator=random))


def test_no_lookup_has_a_row(device):
    check(device, torch.ones(100, 4), torch.full((100,), NO_ROW))


def test_hot_row(device, random):
    check(device, torch.randn(4000, 1, generator=random), rows_with_one_hot(4000, 3000, random))


@pytest.mark.parametrize("length", [15, 16, 17, 32])
def test_rows_end_at_block_boundaries(length, device, random):
    rows = torch.arange(5).repeat_interleave(length)
    check(device, torch.randn(rows.numel(), 2, generator=random), rows)


def test_bags_scale_and_winner(device, random):
    num_lookups, num_bags, dim = 300, 80, 4
    rows = rows_with_one_hot(num_lookups, 150, random)
    grad = torch.randn(num_bags, dim, generator=random)
    bag_of = torch.randint(num_bags, (num_lookups,), generator=random).sort().values.int()
    scale = torch.randn(num_lookups, generator=random)
    winner = torch.randint(-1, num_lookups, (num_bags, dim), generator=random).int()
    won = torch.rand(num_bags, dim, generator=random) < 0.8
    last_of_bag = torch.searchsorted(bag_of, torch.arange(num_bags).int(), right=True).int() - 1
    winner = torch.where(won, last_of_bag.unsqueeze(1), winner)
    check(device, grad, rows, bag_of)
    check(device, grad, rows, bag_of, scale)
    check(device, grad, rows, bag_of, winner=winner)
    check(device, grad, rows, bag_of, scale, winner)


def test_not_finite_stays_in_its_row(device):
    grad = torch.ones(64, 2)
    grad[3, 0], grad[40, 1] = float("inf"), float("nan")
    rows = torch.arange(64) // 4
    _, num, _, order, starts, *_ = unique_rows(rows)
    found = kernel.segment_sum(*(t.to(device) for t in (grad, order, starts, num)), None, None, None)[: int(num)].cpu()
    expected = torch.full((16, 2), 4.0)
    expected[0, 0], expected[10, 1] = float("inf"), float("nan")
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_same_bits_every_time_and_for_any_row_numbers(device, random):
    grad = torch.randn(1000, 2, generator=random).to(device)
    rows = rows_with_one_hot(1000, 700, random)
    results = []
    for shift in (0, 0, 12345):
        _, num, _, order, starts, *_ = (t.to(device) for t in unique_rows(rows + shift))
        results.append(kernel.segment_sum(grad, order, starts, num, None, None, None)[: int(num)])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
