"""Update of a batch's rows: bit-identical to a segment sum followed by a row optimizer, and close to the reference."""

import pytest
import torch

from hotrows.ops.backward_update import kernel, reference
from hotrows.ops.row_optimizer import coefficients
from hotrows.ops.row_optimizer.kernel import row_optimizer
from hotrows.ops.row_optimizer.reference import RULES
from hotrows.ops.rows import NO_ROW, NO_SLOT
from hotrows.ops.segment_sum.kernel import segment_sum
from hotrows.ops.unique.reference import unique_rows

CASES = {
    "sgd": ("sgd", (0.1, 0.0)),
    "sgd with decay": ("sgd", (0.1, 0.01)),
    "adagrad": ("adagrad", (0.05, 1e-10)),
    "row-wise adagrad": ("row_wise_adagrad", (0.05, 1e-8)),
    "adam": ("adam", (0.001, 0.9, 0.999, 1e-8)),
}


class Batch:
    """Lookups, some of them without a row, and a cache that holds most of the rows."""

    def __init__(self, rows, dim, random, num_bags=None, dtype=torch.float32):
        _, self.num, _, self.order, self.starts, *_ = unique_rows(rows)
        num_slots = int(self.num) + 5
        self.dim = dim
        self.cache = torch.rand(num_slots, -(-3 * dim // 4) * 4 + 4, generator=random)  # no negative sum of squares
        self.row_slots = torch.full((rows.numel() + 1,), 10**9, dtype=torch.int32)  # beyond `num`: must not be read
        self.row_slots[: int(self.num)] = torch.randperm(num_slots, generator=random)[: int(self.num)].int()
        self.row_slots[: int(self.num)][torch.rand(int(self.num), generator=random) < 0.1] = NO_SLOT
        self.grad = torch.randn(num_bags or rows.numel(), dim, generator=random).to(dtype)
        self.bag_of = self.scale = self.winner = None

    def pool(self, random):
        """Put the lookups into bags, with weights; the last lookup of each bag has the maximum of some words."""
        num_bags, num_lookups = self.grad.shape[0], self.order.numel()
        self.bag_of = torch.randint(num_bags, (num_lookups,), generator=random).sort().values.int()
        self.scale = torch.randn(num_lookups, generator=random)
        last = torch.searchsorted(self.bag_of, torch.arange(num_bags).int(), right=True).int() - 1
        won = torch.rand(num_bags, self.dim, generator=random) < 0.8
        self.winner = torch.where(won, last.unsqueeze(1), -1)

    def to(self, device):
        moved = object.__new__(Batch)
        for name, value in vars(self).items():
            setattr(moved, name, value.to(device, copy=True) if isinstance(value, torch.Tensor) else value)
        return moved

    def pooling(self):
        return self.bag_of, self.scale, self.winner

    def fused(self, rule, hyper, first_row=None, to=kernel.backward_update):
        batch = (self.row_slots, self.num, self.grad, self.order, self.starts, *self.pooling(), self.dim)
        cache = self.cache.clone()
        to(rule, cache, *batch, hyper, *([first_row] if to is kernel.backward_update else []))
        return cache

    def separately(self, rule, hyper):
        cache = self.cache.clone()
        grads = segment_sum(self.grad, self.order, self.starts, self.num, *self.pooling())
        row_optimizer(rule, cache, self.row_slots, grads, self.num, self.dim, hyper)
        return cache


def rows_with_hot_ones(num_lookups, shares, random):
    """Some rows have the given shares of the lookups, the others few lookups each; some lookups have no row."""
    rows = torch.randint(10, 11 + num_lookups // 2, (num_lookups,), generator=random)
    rows[torch.rand(num_lookups, generator=random) < 0.03] = NO_ROW
    positions = torch.randperm(num_lookups, generator=random)
    for row, share in enumerate(shares):
        count = int(share * num_lookups)
        rows[positions[:count]] = 3 * row
        positions = positions[count:]
    return rows


def check(case, batch, device, close=True):
    rule, hyper = CASES[case]
    ours = batch.to(device)
    on_device = torch.tensor(coefficients(rule, hyper), device=device)
    updated = ours.fused(rule, on_device)
    assert torch.equal(updated, ours.separately(rule, hyper))
    assert torch.equal(updated, ours.separately(rule, on_device))
    if close:
        expected = batch.fused(rule, hyper, to=reference.backward_update)
        torch.testing.assert_close(updated.cpu(), expected, rtol=1e-4, atol=1e-4)
    return updated


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("num_lookups", "dim"), [(1, 4), (40, 128), (20, 100), (20, 150), (150, 16), (1200, 3)])
def test_same_bits_as_separate_operations(case, num_lookups, dim, device, random):
    check(case, Batch(rows_with_hot_ones(num_lookups, (0.3, 0.2, 0.1), random), dim, random), device)


@pytest.mark.parametrize("case", CASES)
def test_same_bits_with_bags(case, device, random):
    batch = Batch(rows_with_hot_ones(500, (0.3, 0.2), random), 4, random, num_bags=120)
    batch.pool(random)
    check(case, batch, device)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("case", "dim"), [*((case, dim) for case in CASES for dim in (16, 128)), *(("adam", dim) for dim in (64, 100, 256))]
)
@pytest.mark.parametrize("pooled", [False, True])
def test_same_bits_in_large_batches(case, dim, pooled, random):
    """Every rule with two dims, and one rule with further ones: each pair is a kernel that takes seconds to compile."""
    batch = Batch(rows_with_hot_ones(300_000, (0.4, 0.1, 0.01, 0.001), random), dim, random)
    if pooled:
        batch.pool(random)
    updated = check(case, batch, torch.device("cuda"), close=False)
    assert torch.isfinite(updated).all()


@pytest.mark.parametrize("length", [15, 16, 17, 32, 255, 256, 257])
def test_rows_end_at_block_boundaries(length, device, random):
    rows = torch.arange(4).repeat_interleave(length)
    check("adagrad", Batch(rows, 2, random), device)


@pytest.mark.parametrize("length", [100, 5000])
def test_one_row_has_all_lookups(length, device, random):
    check("sgd", Batch(torch.full((length,), 7), 1, random), device)


def test_no_lookup_has_a_row(device, random):
    batch = Batch(torch.full((100,), NO_ROW), 4, random).to(device)
    assert torch.equal(batch.fused("sgd", (0.1, 0.0)), batch.cache)


def test_no_lookups(device, random):
    batch = Batch(torch.zeros(0, dtype=torch.int64), 4, random).to(device)
    assert torch.equal(batch.fused("sgd", (0.1, 0.0)), batch.cache)


@pytest.mark.skipif(torch.cuda.is_available(), reason="each of these sizes is a kernel that takes minutes to compile")
@pytest.mark.parametrize(
    ("block", "chunk", "superblock"), [(32, 16, 16), (32, 32, 4), (64, 16, 8), (16, 8, 32), (4, 4, 2)]
)
def test_other_block_sizes(block, chunk, superblock, random, monkeypatch):
    """The boundaries of blocks fall elsewhere. What is compiled for a GPU has one size, which the other tests run."""
    for name, value in (("_BLOCK", block), ("_CHUNK", chunk), ("_SUPERBLOCK", superblock)):
        monkeypatch.setattr(kernel, name, value)
    check("adam", Batch(rows_with_hot_ones(1000, (0.4, 0.2, 0.01), random), 2, random), torch.device("cpu"))


def test_first_rows_may_be_given(device, random):
    batch = Batch(rows_with_hot_ones(500, (0.4, 0.2), random), 4, random).to(device)
    first_row = kernel.first_rows(batch.starts, batch.num)
    position = torch.arange(0, int(batch.starts[-1]), kernel._BLOCK, dtype=torch.int32, device=device)
    expected = torch.searchsorted(batch.starts[: int(batch.num) + 1], position, right=True, out_int32=True) - 1
    assert torch.equal(first_row[: position.numel()], expected)
    assert torch.equal(batch.fused("sgd", (0.1, 0.0), first_row), batch.fused("sgd", (0.1, 0.0)))


def test_bfloat16_is_summed_in_float32(device, random):
    batch = Batch(rows_with_hot_ones(500, (0.4, 0.2), random), 8, random, dtype=torch.bfloat16).to(device)
    updated = check("adam", batch.to("cpu"), device)
    batch.grad = batch.grad.float()
    assert torch.equal(updated, batch.fused(*CASES["adam"]))


def test_long_rows_of_row_wise_adagrad(device, random, monkeypatch):
    monkeypatch.setattr(kernel, "MAX_WORDS", 4)
    check("row-wise adagrad", Batch(rows_with_hot_ones(200, (0.4,), random), 5, random), device)


def test_rule_without_a_kernel(device, random, monkeypatch):
    def shrink(records, grads, dim, hyper):
        (lr,) = hyper
        records[:, :dim].sub_(grads.sign(), alpha=lr)
        records[:, dim].add_(1.0)

    monkeypatch.setitem(RULES, "shrink", shrink)
    batch = Batch(rows_with_hot_ones(300, (0.4,), random), 4, random)
    updated = batch.to(device).fused("shrink", (0.5,)).cpu()
    torch.testing.assert_close(updated, batch.fused("shrink", (0.5,), to=reference.backward_update))


def test_unknown_rule_names_the_known(device, random):
    with pytest.raises(ValueError, match=r"'lion'.*'adam'"):
        Batch(torch.arange(3), 4, random).to(device).fused("lion", ())


def test_reference_takes_coefficients_as_a_tensor(random):
    batch = Batch(rows_with_hot_ones(300, (0.4,), random), 4, random)
    for rule, hyper in CASES.values():
        expected = batch.fused(rule, hyper, to=reference.backward_update)
        given = torch.tensor(coefficients(rule, hyper))
        assert torch.equal(batch.fused(rule, given, to=reference.backward_update), expected)


@pytest.mark.gpu
def test_captured_graph_reads_new_coefficients(random):
    batch = Batch(rows_with_hot_ones(5000, (0.4,), random), 16, random).to("cuda")
    hyper = torch.tensor(coefficients("sgd", (0.1, 0.0)), device="cuda")
    cache = batch.cache.clone()
    first_row = kernel.first_rows(batch.starts, batch.num)
    arguments = (batch.row_slots, batch.num, batch.grad, batch.order, batch.starts, None, None, None, 16)
    batch.fused("sgd", hyper, first_row)  # compiles the kernels before the capture
    torch.use_deterministic_algorithms(False)  # filling empty memory would be captured too
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.backward_update("sgd", cache, *arguments, hyper, first_row)
    for lr in (0.1, 0.7):
        cache.copy_(batch.cache)
        hyper.copy_(torch.tensor(coefficients("sgd", (lr, 0.0))))
        graph.replay()
        assert torch.equal(cache, batch.fused("sgd", (lr, 0.0)))
