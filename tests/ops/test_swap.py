"""Moves between store and cache: the kernel against the reference."""

import pytest
import torch

from hotrows.ops.rows import NO_ROW
from hotrows.ops.swap import Moves, kernel, reference


@pytest.fixture
def on_host(device):
    """Put a store into memory that kernels of the device can read and write."""
    return (lambda store: store.pin_memory()) if device.type == "cuda" else (lambda store: store.clone())


@pytest.mark.parametrize("num_words", [4, 16, 100, 128, 1040])
@pytest.mark.parametrize(("num_moves", "count"), [(0, 0), (1, 1), (7, 7), (100, 60), (100, 0), (2000, 1900)])
@pytest.mark.parametrize(("max_multiprocessors", "sm_scale"), [(2, 1.0), (132, 1.0), (132, 2.0)])
def test_matches_reference(
    max_multiprocessors, sm_scale, num_words, num_moves, count, device, on_host, random, monkeypatch
):
    monkeypatch.setattr(kernel, "_MAX_MULTIPROCESSORS", max_multiprocessors)
    cache = torch.randn(num_moves + 5, num_words, generator=random)
    store = torch.randn(3 * num_moves + 5, num_words, generator=random)
    slots = torch.randperm(cache.shape[0], generator=random)[:num_moves].int()
    rows = torch.randperm(store.shape[0], generator=random)
    rows_out, rows_in = rows[:num_moves], rows[num_moves : 2 * num_moves]
    rows_out[torch.rand(num_moves, generator=random) < 0.3] = NO_ROW
    rows_in[torch.rand(num_moves, generator=random) < 0.3] = NO_ROW
    num = torch.tensor([count], dtype=torch.int32)

    on_device, ours = cache.to(device, copy=True), on_host(store)
    moves = Moves(slots, rows_out, rows_in, num)
    kernel.swap(on_device, ours, Moves(*(each.to(device) for each in moves[:4]), sm_scale=sm_scale))
    if device.type == "cuda":
        torch.cuda.synchronize()
    reference.swap(cache, store, moves)
    assert torch.equal(on_device.cpu(), cache)
    assert torch.equal(ours, store)
