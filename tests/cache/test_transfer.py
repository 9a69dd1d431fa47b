"""Transfers: whichever moves the rows, the same rows end up in the same slots, and blocks have a bounded size."""

import copy

import pytest
import torch
from torch import Tensor

import hotrows
from hotrows.cache.transfer import BlockTransmitter, ZeroCopy
from hotrows.ops.rows import NO_ROW
from hotrows.ops.swap import Moves
from hotrows.stores import RamStore, RecordLayout

LAYOUT = RecordLayout.packed(6)


def moves(device: torch.device) -> tuple[RamStore, Tensor, Moves]:
    """20 of 30 entries are moves: rows 0 … 6 leave, rows 40 … 51 enter; some slots do both, some neither."""
    store = RamStore([hotrows.Table("t", 60)], LAYOUT, device, seed=0)
    cache = torch.arange(30.0 * LAYOUT.words).reshape(30, -1).to(device)
    slots = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    rows_out, rows_in = torch.full((30,), NO_ROW), torch.full((30,), NO_ROW)
    rows_out[:7] = torch.arange(7)
    rows_in[4:16] = torch.arange(40, 52)
    rows_out[25], rows_in[26] = 59, 58  # beyond the moves that count
    num = torch.tensor([20], dtype=torch.int32)
    return store, cache, Moves(*(part.to(device) for part in (slots.int(), rows_out, rows_in, num)))


@pytest.mark.parametrize(("buffer_rows", "passes"), [(1, 7 + 12), (5, 2 + 3), (7, 1 + 2), (1000, 1 + 1)])
def test_several_passes_do_what_one_pass_does(buffer_rows: int, passes: int, device: torch.device) -> None:
    expected_store, expected_cache, arguments = moves(device)
    ZeroCopy().move(expected_store, expected_cache, arguments)
    store, cache, arguments = moves(device)
    transfer = BlockTransmitter(buffer_rows)
    transfer.move(store, cache, arguments)
    assert torch.equal(cache.cpu(), expected_cache.cpu())
    assert torch.equal(store.records, expected_store.records)
    assert transfer.passes == passes
    assert (transfer.bytes_out, transfer.bytes_in) == (7 * LAYOUT.num_bytes, 12 * LAYOUT.num_bytes)


def test_nothing_to_move() -> None:
    store, cache, arguments = moves(torch.device("cpu"))
    transfer = BlockTransmitter(5)
    transfer.move(store, cache, arguments._replace(num=torch.zeros_like(arguments.num)))
    assert (transfer.passes, transfer.bytes_in, transfer.bytes_out) == (0, 0, 0)


def trained(transfer: BlockTransmitter | None, cache: int, device: torch.device) -> hotrows.EmbeddingBagCollection:
    bags = hotrows.EmbeddingBagCollection(
        [hotrows.Table("a", 100), hotrows.Table("b", 40, dim=8)], 4, cache=cache, device=device,
        optimizer=hotrows.optim.Adagrad(lr=0.1), transfer=transfer,
    )  # fmt: skip
    random = torch.Generator().manual_seed(0)
    data = [torch.stack([torch.randint(n, (20,), generator=random) for n in (100, 40)], 1) for _ in range(10)]
    for ids in hotrows.lookahead(data, bags, depth=2, window=5, ids=lambda ids: ids):
        sum(part.square().sum() for part in bags(ids)).backward()
    bags.flush()
    return bags


@pytest.mark.parametrize("cache", [60, 8], ids=["evicting", "overflowing"])
def test_every_move_of_a_cache_goes_through_its_transfer(cache: int, device: torch.device) -> None:
    expected, bags = trained(None, cache, device), trained(BlockTransmitter(3), cache, device)
    for name in ("a", "b"):
        assert torch.equal(bags.weight(name), expected.weight(name))
    stats, transfers = bags.stats(), [cache.transfer for cache in bags.caches]
    assert stats.evictions > 0
    assert sum(transfer.bytes_in for transfer in transfers) == stats.bytes_in
    assert sum(transfer.bytes_out for transfer in transfers) == stats.bytes_out
    assert all(transfer.passes >= transfer.bytes_in // (3 * cache.store.layout.num_bytes) for transfer, cache in zip(
        transfers, bags.caches, strict=True
    ))  # fmt: skip


def test_buffers_are_bounded_and_each_cache_has_its_own() -> None:
    transfer = BlockTransmitter(3)
    bags = trained(transfer, 60, torch.device("cpu"))
    for cache in bags.caches:
        assert cache.transfer is not transfer
        assert cache.transfer._on_host.shape == cache.transfer._on_device.shape == (3, cache.store.layout.words)
    assert copy.deepcopy(bags).caches[0].transfer.buffer_rows == 3
    with pytest.raises(ValueError, match="buffer_rows is 0"):
        BlockTransmitter(0)


@pytest.mark.gpu
def test_steps_are_not_captured_if_the_transfer_waits() -> None:
    bags = trained(BlockTransmitter(), 60, torch.device("cuda"))
    assert bags.schedulers[0].planning_graph is None
    reason = "the store or the transfer makes the host wait for the device when rows move"
    assert hotrows.graphed(lambda ids: bags(ids)[0], bags).reason == reason
