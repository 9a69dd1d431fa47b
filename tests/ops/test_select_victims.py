"""Victim selection: the kernels against the reference."""

import pytest
import torch

from hotrows.ops.select_victims import MAX_DISTANCE, MAX_SEEN, NEEDED, kernel, reference

INT_MIN, INT_MAX = -(2**31), 2**31 - 1


@pytest.fixture(autouse=True, params=["small blocks", "large blocks"])
def blocks(request, monkeypatch) -> None:
    if request.param == "large blocks":
        monkeypatch.setattr(kernel, "_FEW_VICTIMS", 0)


def check(priority, device, wanted, *, last_used=None, pinned=None, oldest=0, length=None):
    priority = priority.int()
    last_used = torch.full_like(priority, -1) if last_used is None else last_used.int()
    pinned = torch.zeros(priority.shape, dtype=torch.bool) if pinned is None else pinned
    length = max(wanted, 1) if length is None else length
    num_wanted = torch.tensor([wanted], dtype=torch.int32)
    expected = reference.select_victims(priority, last_used, pinned, oldest, num_wanted, length)
    victims = kernel.select_victims(
        priority.to(device), last_used.to(device), pinned.to(device), oldest, num_wanted.to(device), length
    )
    assert victims.dtype == torch.int32
    assert victims.tolist() == expected.tolist()


@pytest.mark.parametrize("num_slots", [1, 7, 1000, 4096, 9000])
@pytest.mark.parametrize("spread", [3, 1000, 2**31])
def test_matches_reference(num_slots, spread, device, random):
    priority = torch.randint(-spread, spread, (num_slots,), generator=random)
    last_used = torch.randint(10, (num_slots,), generator=random)
    pinned = torch.rand(num_slots, generator=random) < 0.2
    for wanted in sorted({0, 1, num_slots // 3, num_slots}):
        check(priority, device, wanted, last_used=last_used, pinned=pinned, oldest=7, length=num_slots + 5)


def test_few_programs_take_all_blocks(device, random, monkeypatch):
    monkeypatch.setattr(kernel, "_MAX_PROGRAMS", 2)
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
def test_of_equal_priorities_the_lower_slot_is_evicted(value, device, random):
    pinned = torch.rand(9000, generator=random) < 0.5
    check(torch.full((9000,), value), device, 3000, pinned=pinned)


@pytest.mark.parametrize("wanted", [1, 2, 3, 4, 5, 6])
def test_extreme_priorities(wanted, device):
    check(torch.tensor([INT_MAX, INT_MIN, 0, -1, INT_MIN, INT_MAX]), device, wanted)


def test_no_slots(device):
    check(torch.zeros(0), device, 3)


@pytest.mark.parametrize("wanted", [1, 300, 2500, 6000])
def test_one_pass_over_the_priorities_of_the_lookahead_policy(wanted, device, random):
    batch_number = 1000
    seen = torch.randint(MAX_SEEN + 1, (9000,), generator=random)
    needed = NEEDED - batch_number - torch.randint(MAX_DISTANCE + 1, (9000,), generator=random)
    priority = torch.where(torch.rand(9000, generator=random) < 0.4, needed, seen).int()
    priority[::7] = INT_MIN  # never used
    last_used = torch.randint(10, (9000,), generator=random).int()
    pinned = torch.rand(9000, generator=random) < 0.2
    num_wanted = torch.tensor([wanted], dtype=torch.int32)
    expected = reference.select_victims(priority, last_used, pinned, 7, num_wanted, wanted)
    victims, counts = torch.full((wanted,), -1, dtype=torch.int32), torch.zeros(kernel.NUM_COUNTS, dtype=torch.int32)
    inputs = torch.tensor([batch_number, 7], dtype=torch.int32)
    state = (priority, inputs[:1], last_used, pinned, inputs[1:], num_wanted, counts)
    victims = victims.to(device)
    kernel.select_victims_into(*(tensor.to(device) for tensor in state), victims)
    assert victims.tolist() == expected.tolist()


@pytest.mark.parametrize(("start", "length"), [(0, 9000), (100, 3000), (8000, 5000), (8999, 9000), (4096, 4096)])
@pytest.mark.parametrize("batch_number", [None, 1000])
def test_a_range_of_the_slots(start, length, batch_number, device, random):
    priority = torch.randint(MAX_SEEN + 1, (9000,), generator=random).int()
    last_used = torch.randint(10, (9000,), generator=random).int()
    pinned = torch.rand(9000, generator=random) < 0.2
    scanned = (torch.arange(length) + start) % 9000
    num_wanted = torch.tensor([700], dtype=torch.int32)
    state = priority[scanned], last_used[scanned], pinned[scanned]
    expected = scanned[reference.select_victims(*state, 7, num_wanted, 700).long()]
    inputs = torch.tensor([7, batch_number or 0, start, length], dtype=torch.int32, device=device)
    counts = torch.zeros(kernel.NUM_COUNTS, dtype=torch.int32, device=device)
    victims = torch.full((700,), -1, dtype=torch.int32, device=device)
    kernel.select_victims_into(
        priority.to(device), None if batch_number is None else inputs[1:2], last_used.to(device), pinned.to(device),
        inputs[:1], num_wanted.to(device), counts, victims, inputs[2:],
    )  # fmt: skip
    assert victims.tolist() == expected.tolist()
    assert int(counts[:256].sum()) == int(((last_used < 7) & ~pinned)[scanned].sum())
