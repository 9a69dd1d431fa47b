"""The hash table: kernels and reference read each other's tables."""

import pytest
import torch

from hotrows.ops.row_table import BARRED, EMPTY, ERASED, kernel, reference
from hotrows.ops.rows import NO_ROW


def empty_table(num_cells: int) -> torch.Tensor:
    keys = torch.full((num_cells + 1,), EMPTY)
    keys[-1] = BARRED
    return keys


def some_rows(count: int, random: torch.Generator) -> torch.Tensor:
    """Distinct rows, from small to far beyond 32 bits."""
    small = torch.randperm(10 * count + 1, generator=random)[:count]
    return torch.where(torch.arange(count) % 2 == 0, small, small + 2**61)


def counted(number: int) -> torch.Tensor:
    return torch.tensor([number], dtype=torch.int32)


def check_inserted(before: torch.Tensor, after: torch.Tensor, rows: torch.Tensor, cells: torch.Tensor) -> None:
    """Every row took a vacant cell of its own, and nothing else changed."""
    wanted = rows >= 0
    assert torch.equal(after[cells[wanted]], rows[wanted])
    assert bool((before[cells[wanted]] < 0).all())
    assert bool((cells[~wanted] == -1).all())
    restored = after.clone()
    restored[cells[wanted]] = before[cells[wanted]]
    assert torch.equal(restored, before)


# one EMPTY cell is enough for every search to end; in a small table, where it ends soon
@pytest.mark.parametrize(("num_cells", "count"), [(2, 1), (13, 12), (1021, 700), (4096, 1500)])
def test_finds_what_the_reference_inserted(num_cells, count, device, random):
    keys = empty_table(num_cells)
    rows = some_rows(count, random)
    cells = reference.insert(keys, rows, counted(count))
    absent = rows[: count // 2] + 2**40
    asked = torch.cat([rows, absent, torch.tensor([NO_ROW])])[torch.randperm(count + absent.numel() + 1)]
    answer = kernel.find(keys.to(device), asked.to(device), counted(asked.numel()).to(device))
    assert torch.equal(answer.cpu(), reference.find(keys, asked, counted(asked.numel())))
    answer = kernel.find(keys.to(device), rows.to(device), counted(count).to(device))
    assert torch.equal(answer.cpu(), cells)


@pytest.mark.parametrize(("num_cells", "count"), [(2, 1), (13, 12), (1021, 600), (5000, 1000)])
def test_reference_finds_what_was_inserted(num_cells, count, device, random):
    before = empty_table(num_cells)
    rows = some_rows(count, random)
    keys = before.to(device, copy=True)
    cells = kernel.insert(keys, rows.to(device), counted(count).to(device)).cpu()
    check_inserted(before, keys.cpu(), rows, cells)
    assert torch.equal(reference.find(keys.cpu(), rows, counted(count)), cells)


def test_erased_cells_are_taken_and_searched_past(device, random):
    keys = empty_table(211)
    rows = some_rows(200, random)
    old, new = rows[:100], rows[100:]
    cells = reference.insert(keys, old, counted(100))
    keys[cells[::2]] = ERASED
    before = keys.clone()
    keys = keys.to(device, copy=True)
    new_cells = kernel.insert(keys, new.to(device), counted(100).to(device)).cpu()
    check_inserted(before, keys.cpu(), new, new_cells)
    assert bool((before[new_cells] == ERASED).any())
    answer = kernel.find(keys, old.to(device), counted(100).to(device)).cpu()
    assert torch.equal(answer[1::2], cells[1::2])
    assert bool((answer[::2] == -1).all())


@pytest.mark.parametrize(("num_rows", "count"), [(0, 0), (1, 0), (1, 1), (7, 3), (200, 100)])
def test_only_the_counted_rows(num_rows, count, device, random):
    before = empty_table(401)
    rows = some_rows(num_rows, random)
    rows[torch.rand(num_rows, generator=random) < 0.2] = NO_ROW
    keys = before.to(device, copy=True)
    cells = kernel.insert(keys, rows.to(device), counted(count).to(device)).cpu()
    rows[count:] = NO_ROW
    check_inserted(before, keys.cpu(), rows, cells)
    found = kernel.find(keys, rows.to(device), counted(count // 2).to(device)).cpu()
    assert torch.equal(found[: count // 2], cells[: count // 2])
    assert bool((found[count // 2 :] == -1).all())
