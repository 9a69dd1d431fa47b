"""Remapping of row numbers: the kernel against the reference."""

import pytest
import torch

from hotrows.ops.remap import kernel, reference


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("length", "count"), [(0, 0), (1, 1), (7, 0), (300, 299), (1000, 512)])
def test_matches_reference(length, count, dtype, device, random):
    row_of = torch.randperm(5000, generator=random).to(dtype)
    rows = torch.randperm(5000, generator=random)[:length]
    rows[torch.rand(length, generator=random) < 0.2] = -1
    num = torch.tensor([count], dtype=torch.int32)
    on_host = row_of.pin_memory() if device.type == "cuda" else row_of
    found = kernel.remap(rows.to(device), num.to(device), on_host).cpu()
    expected = [int(row_of[row]) if i < count and row >= 0 else -1 for i, row in enumerate(rows.tolist())]
    assert found.dtype is torch.int64
    assert found.tolist() == expected
    assert torch.equal(found, reference.remap(rows, num, row_of))
