"""Optimizer steps on records: the kernel against the reference."""

import pytest
import torch

from hotrows.ops.row_optimizer import kernel, reference
from hotrows.ops.rows import NO_SLOT

HYPER = {
    "sgd": (0.1, 0.01),
    "adagrad": (0.05, 1e-10),
    "row_wise_adagrad": (0.05, 1e-8),
    "adam": (0.001, 0.9, 0.999, 1e-8),
}


def check(rule, device, random, num_slots, count, dim, hyper, num_grads=None):
    cache = torch.rand(num_slots + 5, -(-3 * dim // 4) * 4 + 4, generator=random)  # no negative sum of squares
    slots = torch.randperm(cache.shape[0], generator=random)[:num_slots].int()
    slots[torch.rand(num_slots, generator=random) < 0.1] = NO_SLOT
    grads = torch.randn(num_slots if num_grads is None else num_grads, dim, generator=random)
    num = torch.tensor([count], dtype=torch.int32)
    ours = cache.to(device, copy=True)
    kernel.row_optimizer(rule, ours, slots.to(device), grads.to(device), num.to(device), dim, hyper)
    reference.row_optimizer(rule, cache, slots, grads, num, dim, hyper)
    torch.testing.assert_close(ours.cpu(), cache, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", HYPER)
@pytest.mark.parametrize("dim", [1, 3, 4, 16, 100, 128])
@pytest.mark.parametrize(("num_slots", "count"), [(0, 0), (1, 1), (7, 7), (150, 100)])
def test_matches_reference(rule, dim, num_slots, count, device, random):
    check(rule, device, random, num_slots, count, dim, HYPER[rule])


@pytest.mark.parametrize("rule", HYPER)
def test_long_rows(rule, device, random):
    check(rule, device, random, 5, 4, 1500, HYPER[rule])


@pytest.mark.parametrize("rule", HYPER)
def test_few_programs_update_all_rows(rule, device, random, monkeypatch):
    monkeypatch.setattr(kernel, "_MAX_PROGRAMS", 2)
    check(rule, device, random, 100, 90, 128, HYPER[rule])


def test_count_of_zero(device, random):
    check("adam", device, random, 100, 0, 16, HYPER["adam"])


def test_sgd_without_decay(device, random):
    check("sgd", device, random, 7, 7, 16, (0.1, 0.0))


@pytest.mark.parametrize("num_grads", [60, 150])
def test_as_many_gradients_as_counted_are_enough(num_grads, device, random):
    check("adam", device, random, 100, 60, 4, HYPER["adam"], num_grads)


@pytest.mark.parametrize(("num_slots", "count", "num_grads"), [(0, 0, 0), (7, 7, 7), (100, 60, 60), (100, 60, 150)])
@pytest.mark.parametrize("dim", [3, 128, 500])
def test_rule_without_a_kernel(num_slots, count, num_grads, dim, device, random, monkeypatch):
    def shrink(records, grads, dim, hyper):
        (lr,) = hyper
        records[:, :dim].sub_(grads.sign(), alpha=lr)
        records[:, dim].add_(1.0)

    monkeypatch.setitem(reference.RULES, "shrink", shrink)
    check("shrink", device, random, num_slots, count, dim, (0.5,), num_grads)


def test_unknown_rule_names_the_known(device):
    num = torch.zeros(1, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"'lion'.*'adam'"):
        kernel.row_optimizer(
            "lion", torch.zeros(1, 4, device=device), num, torch.zeros(1, 4, device=device), num, 4, ()
        )
