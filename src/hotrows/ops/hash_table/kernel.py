"""The hash table in Triton: every program takes a block of rows from cell to cell until all of them are done."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.hash_table import BARRED, EMPTY, ERASED

_EMPTY, _ERASED, _BARRED = tl.constexpr(EMPTY), tl.constexpr(ERASED), tl.constexpr(BARRED)
# One warp, so that no barrier is needed to ask whether all rows are done, and a long search delays few other rows.
_BLOCK, _NUM_WARPS = 64, 1
_CELLS_PER_PROGRAM = 2048  # when the table is cleared


@triton.jit
def _first_cell(row, num_cells):
    x = row.to(tl.uint64)  # unsigned, for logical shifts
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = x ^ (x >> 31)
    return ((x >> 32).to(tl.int64) * num_cells) >> 32


@triton.jit
def _next_cell(cell, num_cells):
    return tl.where(cell + 1 == num_cells, 0, cell + 1)


@triton.jit
def find_cells(keys, row, searching, num_cells):
    """The cell of each row that is searched for, -1 where it is absent."""
    cell = _first_cell(row, num_cells)
    answer = tl.full(row.shape, -1, tl.int64)
    while tl.max(searching.to(tl.int32), 0) > 0:
        key = tl.load(keys + cell, mask=searching, other=_EMPTY)
        answer = tl.where(searching & (key == row), cell, answer)
        searching = searching & (key != row) & (key != _EMPTY)
        cell = _next_cell(cell, num_cells)
    return answer


@triton.jit
def insert_cells(keys, row, searching, position, num_cells):
    """A cell for each row that is to be inserted, -1 for the others."""
    # Compare-and-swap has no mask. An element without work compares with BARRED, which the cell it aims at does not
    # hold. Each aims at a different cell, because atomics on the same cell run one after the other.
    cell = _first_cell(tl.where(searching, row, position), num_cells)
    answer = tl.full(row.shape, -1, tl.int64)
    while tl.max(searching.to(tl.int32), 0) > 0:
        # The key may be stale by the time of the swap, which then fails. A taken cell stays taken, so the row moves on.
        key = tl.load(keys + cell, mask=searching, other=_BARRED)
        vacant = (key == _EMPTY) | (key == _ERASED)
        expected = tl.where(vacant, key, _BARRED)
        won = vacant & (tl.atomic_cas(keys + cell, expected, row, sem="relaxed") == expected)
        answer = tl.where(won, cell, answer)
        searching = searching & ~won
        cell = tl.where(searching, _next_cell(cell, num_cells), cell)
    return answer


@triton.jit
def erase_cells(keys, cell, erasing, num_cells):
    """Erase cells, and return which of them stay marked as erased. Not to be run while rows are inserted.

    A cell in front of an empty one becomes empty instead, because every search that reaches it would end right after.
    """
    follower = tl.load(keys + _next_cell(cell, num_cells), mask=erasing, other=_EMPTY)
    left = erasing & (follower != _EMPTY)
    tl.store(keys + cell, tl.where(left, _ERASED, _EMPTY).to(tl.int64), mask=erasing)
    return left


@triton.jit(do_not_specialize=["num_rows", "num_cells"])
def _find(keys, rows, num, cells, num_rows, num_cells, BLOCK: tl.constexpr):
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + position, mask=position < tl.load(num), other=-1)
    tl.store(cells + position, find_cells(keys, row, row >= 0, num_cells), mask=position < num_rows)


@triton.jit(do_not_specialize=["num_rows", "num_cells"])
def _insert(keys, rows, num, cells, num_rows, num_cells, BLOCK: tl.constexpr):
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + position, mask=position < tl.load(num), other=-1)
    tl.store(cells + position, insert_cells(keys, row, row >= 0, position, num_cells), mask=position < num_rows)


@triton.jit(do_not_specialize=["num_cells"])
def _clear(keys, position_at, num_cells, BLOCK: tl.constexpr):
    cell = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(keys + cell, tl.where(cell == num_cells, _BARRED, _EMPTY).to(tl.int64), mask=cell <= num_cells)
    tl.store(position_at + cell, tl.full([BLOCK], -1, tl.int32), mask=cell <= num_cells)


@triton.jit(do_not_specialize=["num_rows", "num_cells"])
def _build(keys, position_at, cell_of, rows, num_rows, num_cells, BLOCK: tl.constexpr):
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + position, mask=position < num_rows, other=-1)
    cell = insert_cells(keys, row, row >= 0, position, num_cells)
    tl.store(position_at + cell, position.to(tl.int32), mask=cell >= 0)
    tl.store(cell_of + position, cell.to(tl.int32), mask=position < num_rows)


def find(keys: Tensor, rows: Tensor, num: Tensor) -> Tensor:
    cells = torch.empty_like(rows)
    if rows.numel():
        grid = (triton.cdiv(rows.numel(), _BLOCK),)
        _find[grid](keys, rows, num, cells, rows.numel(), keys.numel() - 1, BLOCK=_BLOCK, num_warps=_NUM_WARPS)
    return cells


def insert(keys: Tensor, rows: Tensor, num: Tensor) -> Tensor:
    cells = torch.empty_like(rows)
    if rows.numel():
        grid = (triton.cdiv(rows.numel(), _BLOCK),)
        _insert[grid](keys, rows, num, cells, rows.numel(), keys.numel() - 1, BLOCK=_BLOCK, num_warps=_NUM_WARPS)
    return cells


def build(keys: Tensor, position_at: Tensor, cell_of: Tensor, rows: Tensor) -> None:
    num_cells = keys.numel() - 1
    _clear[(triton.cdiv(keys.numel(), _CELLS_PER_PROGRAM),)](keys, position_at, num_cells, BLOCK=_CELLS_PER_PROGRAM)
    if rows.numel():
        grid = (triton.cdiv(rows.numel(), _BLOCK),)
        _build[grid](keys, position_at, cell_of, rows, rows.numel(), num_cells, BLOCK=_BLOCK, num_warps=_NUM_WARPS)
