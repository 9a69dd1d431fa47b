"""The overflow buffer grows while rows and their state are in the cache."""

import pytest
import torch

import hotrows
from hotrows.cache import maintenance, overflow
from hotrows.runtime.streams import InlineStream

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
NUM_ROWS = 80
PASSES = [(0, 5), (2, 20), (0, 70), (30, 36), (10, 80)]  # first and last row of each


def make_bag(cache, device):
    return hotrows.EmbeddingBag(
        NUM_ROWS, 4, mode="sum", cache=cache, optimizer=hotrows.optim.Adam(lr=0.1), device=device
    )


def train(bag, first, last):
    (bag(torch.arange(first, last).unsqueeze(1)) - 1.0).square().sum().backward()


def trained(last, device):
    """A bag with six slots, and one with all rows on the device, after a pass up to a row."""
    bags = make_bag(6, device), make_bag("100%", device)
    for bag in bags:
        train(bag, 0, last)
    return bags


@pytest.fixture
def not_twice(monkeypatch):
    """No cache is small enough to be in memory twice, or to be moved in one piece."""
    monkeypatch.setattr(overflow, "MAX_BYTES_TO_COPY", 0)
    monkeypatch.setattr(maintenance, "SLOTS_AT_ONCE", 4)


@pytest.mark.parametrize("device", DEVICES)
def test_it_grows_through_the_store(device, not_twice, monkeypatch):
    grown = []
    grow = overflow._grow_through_store
    monkeypatch.setattr(overflow, "_grow_through_store", lambda *given: (grown.append(given), grow(*given)))
    bag, other = make_bag(6, device), make_bag("100%", device)
    for first, last in PASSES:
        for module in (bag, other):
            train(module, first, last)
        with torch.inference_mode():
            everything = bag(torch.arange(NUM_ROWS).unsqueeze(1))
        assert torch.equal(everything.cpu(), other.weight())
    assert len(grown) >= 1
    assert len(bag.caches[0].records) >= NUM_ROWS
    ours, theirs = bag.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert torch.equal(bag.weight(), other.weight())


@pytest.mark.parametrize("device", DEVICES)
def test_while_batches_are_in_flight(device, not_twice):
    """Reads in the middle of a lookahead loop, whose rows are in the cache already."""

    def run(cache):
        bag = make_bag(cache, device)
        batches = [torch.arange(first % 60, first % 60 + 7).unsqueeze(1) for first in range(0, 200, 5)]
        read = []
        for number, batch in enumerate(hotrows.lookahead(batches, bag, depth=2, window=5, ids=lambda batch: batch)):
            (bag(batch) - 1.0).square().sum().backward()
            if number % 7 == 3:
                with torch.no_grad():
                    read.append(bag(torch.arange(10 + 2 * number % 70).unsqueeze(1)).cpu())
        return bag.weight(), read

    (ours, our_reads), (theirs, their_reads) = run(40), run("100%")
    assert torch.equal(ours, theirs)
    assert all(map(torch.equal, our_reads, their_reads))


@pytest.fixture
def caches_cannot_be_had(monkeypatch):
    """Makes the first attempts to allocate a cache fail, and returns the sizes that were asked for."""
    new_zeros, asked = torch.Tensor.new_zeros, []

    def fail_first(num):
        def new(self, *shape, **options):
            if len(shape) == 2:  # of a cache
                asked.append(shape[0])
                if len(asked) <= num:
                    raise torch.OutOfMemoryError("simulated")
            return new_zeros(self, *shape, **options)

        monkeypatch.setattr(torch.Tensor, "new_zeros", new)
        return asked

    return fail_first


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_lost_where_there_is_no_memory_for_it(device, not_twice, caches_cannot_be_had):
    bag, other = trained(6, device)
    asked = caches_cannot_be_had(2)
    with pytest.raises(torch.OutOfMemoryError, match="simulated"):
        bag(torch.arange(40).unsqueeze(1))
    assert asked == [6 + 34 + 8, 40, 6]
    assert len(bag.caches[0].records) == 6
    for first, last in PASSES:
        for module in (bag, other):
            train(module, first, last)
    assert torch.equal(bag.weight(), other.weight())


@pytest.mark.parametrize("device", DEVICES)
def test_a_smaller_buffer_where_there_is_memory_for_no_larger_one(device, not_twice, caches_cannot_be_had):
    bag, other = trained(20, device)
    asked = caches_cannot_be_had(1)
    for module in (bag, other):
        train(module, 0, 30)
    assert asked == [6 + 2 * (14 + 3), 30]
    assert torch.equal(bag.weight(), other.weight())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", ["the cache", "to move it"])
def test_a_cache_that_is_gone_is_never_written_back(what, device, not_twice, caches_cannot_be_had, monkeypatch):
    """Its rows are in the store. Training and reading raise an error that says so."""
    bag, other = make_bag(6, device), make_bag("100%", device)
    streams = bag.schedulers[0].streams
    streams.moving = InlineStream() if device == "cpu" else streams.moving  # goes on after a failure, as on CUDA
    for module in (bag, other):
        train(module, 0, 6)
    loss = (bag(torch.arange(4).unsqueeze(1)) - 1.0).square().sum()
    if what == "the cache":
        assert caches_cannot_be_had(100) == []
    else:

        def fail(cache, streams):
            raise torch.OutOfMemoryError("simulated")

        monkeypatch.setattr(overflow, "read_again_all", fail)
    ids = torch.arange(40).unsqueeze(1)
    for _ in range(2):
        with pytest.raises(MemoryError, match="the cache of 6 rows was freed to enlarge its overflow buffer"):
            bag(ids)
        with pytest.raises(MemoryError, match="allocated and filled again"), torch.no_grad():
            bag(ids)
    with pytest.raises(MemoryError, match="allocated and filled again"):
        loss.backward()
    assert torch.equal(bag.weight(), other.weight())


@pytest.mark.gpu
def test_a_large_cache_is_never_in_memory_twice():
    rows, dim = 1_500_000, 64
    bag = hotrows.EmbeddingBag(rows, dim, mode="sum", cache="60%", optimizer=hotrows.optim.SGD(lr=0.1), device="cuda")
    cache = bag.caches[0]
    assert cache.records.nbytes > overflow.MAX_BYTES_TO_COPY
    ids = torch.arange(rows - 1000, rows).unsqueeze(1)
    for _ in range(1, 4):
        (bag(torch.randint(0, rows, (4096, 1))) - 1.0).square().sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        bag(ids)
    torch.cuda.synchronize()
    assert len(cache.records) > cache.num_slots
    assert torch.cuda.max_memory_allocated() - before < cache.records.nbytes / 4
