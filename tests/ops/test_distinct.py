"""Distinct rows: the kernels against the reference."""

import pytest
import torch

from hotrows.ops.distinct import Distinct, kernel, reference
from hotrows.ops.rows import NO_ROW


def check(rows: torch.Tensor, device: torch.device) -> None:
    expected = reference.distinct(rows)
    answer = kernel.distinct(rows.to(device))
    for name, ours, theirs in zip(Distinct._fields, answer, expected, strict=True):
        assert ours.dtype == theirs.dtype, name
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("num_lookups", [0, 1, 7, 1000, 1023, 1024, 5000])
@pytest.mark.parametrize("num_rows", [1, 10, 10**12])
def test_matches_reference(num_lookups, num_rows, device, random):
    rows = torch.randint(num_rows, (num_lookups,), generator=random)
    check(rows, device)
    rows[torch.rand(num_lookups, generator=random) < 0.3] = NO_ROW
    check(rows, device)


@pytest.mark.parametrize("num_lookups", [1, 1000, 1024])
def test_no_lookup_has_a_row(num_lookups, device):
    check(torch.full((num_lookups,), NO_ROW), device)


def test_one_hot_row(device, random):
    rows = torch.randint(1000, (4000,), generator=random)
    rows[torch.randperm(4000, generator=random)[:3000]] = 500
    check(rows, device)
