"""Victim selection: the kernels against the reference."""

import pytest
import torch

from hotrows.ops.select_victims import FURTHEST, MOST_SEEN, NEEDED, kernel, reference

INT_MIN, INT_MAX = -(2**31), 2**31 - 1


@pytest.fixture(autouse=True, params=["small blocks", "large blocks"])
def blocks(request, monkeypatch) -> None:
    if request.param == "large blocks":
        monkeypatch.setattr(kernel, "_FEW", 0)


def check(priority, device, wanted, *, last_used=None, pinned=None, oldest=0, most=None):
    priority = priority.int()
    last_used = torch.full_like(priority, -1) if last_used is None else last_used.int()
    pinned = torch.zeros(priority.shape, dtype=torch.bool) if pinned is None else pinned
    most = max(wanted, 1) if most is None else most
    num_wanted = torch.tensor([wanted], dtype=torch.int32)
    expected = reference.select_victims(priority, last_used, pinned, oldest, num_wanted, most)
    answer = kernel.select_victims(
        priority.to(device), last_used.to(device), pinned.to(device), oldest, num_wanted.to(device), most
    )
    assert answer.dtype == torch.int32
    assert answer.tolist() == expected.tolist()


@pytest.mark.parametrize("num_slots", [1, 7, 1000, 4096, 9000])
@pytest.mark.parametrize("spread", [3, 1000, 2**31])
def test_matches_reference(num_slots, spread, device, random):
    priority = torch.randint(-spread, spread, (num_slots,), generator=random)
    last_used = torch.randint(10, (num_slots,), generator=random)
    pinned = torch.rand(num_slots, generator=random) < 0.2
    for wanted in sorted({0, 1, num_slots // 3, num_slots}):
        check(priority, device, wanted, last_used=last_used, pinned=pinned, oldest=7, most=num_slots + 5)


def test_few_programs_do_it_all(device, random, monkeypatch):
    monkeypatch.setattr(kernel, "_MOST_PROGRAMS", 2)
    pinned = torch.rand(30000, generator=random) < 0.2
    check(torch.randint(-500, 500, (30000,), generator=random), device, 10000, pinned=pinned)


def test_more_wanted_than_evictable(device, random):
    last_used = torch.randint(10, (1000,), generator=random)
    check(torch.randint(50, (1000,), generator=random), device, 900, last_used=last_used, oldest=5)


def test_nothing_evictable(device):
    priority = torch.arange(5000)
    check(priority, device, 10, pinned=torch.ones(5000, dtype=torch.bool))
    check(priority, device, 10, last_used=torch.full((5000,), 3), oldest=3)


@pytest.mark.parametrize("value", [INT_MIN, -1, 0, 1, INT_MAX])
def test_equal_priorities_give_up_lower_slots(value, device, random):
    pinned = torch.rand(9000, generator=random) < 0.5
    check(torch.full((9000,), value), device, 3000, pinned=pinned)


@pytest.mark.parametrize("wanted", [1, 2, 3, 4, 5, 6])
def test_extreme_priorities(wanted, device):
    check(torch.tensor([INT_MAX, INT_MIN, 0, -1, INT_MIN, INT_MAX]), device, wanted)


def test_no_slots(device):
    check(torch.zeros(0), device, 3)


@pytest.mark.parametrize("wanted", [1, 300, 2500, 6000])
def test_one_pass_over_the_priorities_of_a_policy_that_looks_ahead(wanted, device, random):
    number = 1000
    seen = torch.randint(MOST_SEEN + 1, (9000,), generator=random)
    needed = NEEDED - number - torch.randint(FURTHEST + 1, (9000,), generator=random)
    priority = torch.where(torch.rand(9000, generator=random) < 0.4, needed, seen).int()
    priority[::7] = INT_MIN  # never used
    last_used = torch.randint(10, (9000,), generator=random).int()
    pinned = torch.rand(9000, generator=random) < 0.2
    num_wanted = torch.tensor([wanted], dtype=torch.int32)
    expected = reference.select_victims(priority, last_used, pinned, 7, num_wanted, wanted)
    answer, counts = torch.full((wanted,), -1, dtype=torch.int32), torch.zeros(kernel.NUM_COUNTS, dtype=torch.int32)
    numbers = torch.tensor([number, 7], dtype=torch.int32)
    moved = [part.to(device) for part in (priority, numbers[:1], last_used, pinned, numbers[1:], num_wanted, counts)]
    answer = answer.to(device)
    kernel.select_victims_into(*moved, answer)
    assert answer.tolist() == expected.tolist()


@pytest.mark.parametrize(("start", "length"), [(0, 9000), (100, 3000), (8000, 5000), (8999, 9000), (4096, 4096)])
@pytest.mark.parametrize("number", [None, 1000])
def test_a_part_of_the_slots(start, length, number, device, random):
    priority = torch.randint(MOST_SEEN + 1, (9000,), generator=random).int()
    last_used = torch.randint(10, (9000,), generator=random).int()
    pinned = torch.rand(9000, generator=random) < 0.2
    part = (torch.arange(length) + start) % 9000
    num_wanted = torch.tensor([700], dtype=torch.int32)
    expected = part[reference.select_victims(priority[part], last_used[part], pinned[part], 7, num_wanted, 700).long()]
    numbers = torch.tensor([7, number or 0, start, length], dtype=torch.int32, device=device)
    counts = torch.zeros(kernel.NUM_COUNTS, dtype=torch.int32, device=device)
    answer = torch.full((700,), -1, dtype=torch.int32, device=device)
    kernel.select_victims_into(
        priority.to(device), None if number is None else numbers[1:2], last_used.to(device), pinned.to(device),
        numbers[:1], num_wanted.to(device), counts, answer, numbers[2:],
    )  # fmt: skip
    assert answer.tolist() == expected.tolist()
    assert int(counts[:256].sum()) == int(((last_used < 7) & ~pinned)[part].sum())
