"""The hash table: kernels and reference read each other's tables."""

import pytest
import torch
import triton
import triton.language as tl

from hotrows.ops.hash_table import BARRED, EMPTY, ERASED, kernel, reference
from hotrows.ops.rows import NO_ROW


def empty_table(num_cells: int) -> torch.Tensor:
    keys = torch.full((num_cells + 1,), EMPTY)
    keys[-1] = BARRED
    return keys


def some_rows(count: int, random: torch.Generator) -> torch.Tensor:
    """Unique rows, from small to far beyond 32 bits."""
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


# One EMPTY cell is enough for every search to end. Only a small table is that full, so that searches end soon.
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


@pytest.mark.parametrize(("num_cells", "count"), [(2, 0), (2, 1), (13, 12), (5000, 1000)])
def test_build_from_rows(num_cells, count, device, random):
    rows = some_rows(count, random)
    rows[::5] = NO_ROW
    for build, where in [(kernel.build, device), (reference.build, torch.device("cpu"))]:
        keys, position_at = torch.full((num_cells + 1,), 77), torch.full((num_cells + 1,), 88, dtype=torch.int32)
        cell_of = torch.full((count + 1,), 99, dtype=torch.int32)
        keys, position_at, cell_of, given = (tensor.to(where) for tensor in (keys, position_at, cell_of, rows))
        build(keys, position_at, cell_of, given)
        keys, position_at, cell_of = keys.cpu(), position_at.cpu(), cell_of.cpu()
        assert (int(keys[-1]), int(cell_of[-1])) == (BARRED, 99)
        assert torch.equal(cell_of[:-1].long(), reference.find(keys, rows, counted(count)))
        present = rows >= 0
        assert torch.equal(position_at[cell_of[:-1][present].long()].long(), torch.nonzero(present).squeeze(1))
        assert int((position_at == -1).sum()) == int((keys < 0).sum()) == num_cells + 1 - int(present.sum())
        assert bool((keys[:-1][keys[:-1] < 0] == EMPTY).all())


@triton.jit
def _erase(keys, rows, left, num_rows, num_cells, BLOCK: tl.constexpr):  # noqa: N803
    """Find and erase every row, in programs that do not wait for each other, as the planning kernels do."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + position, mask=position < num_rows, other=-1)
    cell = kernel.find_cells(keys, row, row >= 0, num_cells)
    erased = kernel.erase_cells(keys, cell, row >= 0, num_cells)
    tl.store(left + position, erased.to(tl.int32), mask=position < num_rows)


@pytest.mark.parametrize(("num_cells", "max_rows"), [(7, 6), (61, 55), (512, 300), (4096, 700)])
def test_most_erased_cells_become_empty(num_cells, max_rows, device, random):
    """Rows in the table are always found, and no more cells are marked as erased than is reported."""
    keys = empty_table(num_cells).to(device)
    candidates = some_rows(4 * max_rows, random)
    present: set[int] = set()
    num_erased, num_removed = 0, 0
    for repeat in range(12):
        shuffled = candidates[torch.randperm(candidates.numel(), generator=random)].tolist()
        entering = [row for row in shuffled if row not in present][: max_rows - num_erased - len(present)]
        if entering:
            rows = torch.tensor(entering, device=device)
            kernel.insert(keys, rows, counted(len(entering)).to(device))
            present.update(entering)
        leaving = sorted(present)[repeat % 3 :: 2]
        rows, left = torch.tensor(leaving, device=device), torch.zeros(len(leaving), dtype=torch.int32, device=device)
        if leaving:
            _erase[(triton.cdiv(len(leaving), 64),)](keys, rows, left, len(leaving), num_cells, BLOCK=64, num_warps=1)
            present.difference_update(leaving)
        num_erased += int(left.sum())
        num_removed += len(leaving)
        assert int((keys[:-1] == ERASED).sum()) <= num_erased
        assert sorted(keys[keys >= 0].tolist()) == sorted(present)
        asked = torch.tensor([*present, *leaving], device=device)
        found = kernel.find(keys, asked, counted(asked.numel()).to(device)).cpu()
        assert bool((found[: len(present)] >= 0).all())
        assert bool((found[len(present) :] == -1).all())
    assert num_removed > 0
    assert num_cells < 4096 or num_erased < num_removed / 4
