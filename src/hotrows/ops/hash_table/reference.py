"""The hash table in plain PyTorch: every pass of a loop takes all rows that are not done one cell further."""

import torch
from torch import Tensor

from hotrows.ops.rows import filled

EMPTY, ERASED, BARRED = -1, -2, -3


def mix(x: Tensor) -> Tensor:
    """Scramble int64 values (the finalizer of SplitMix64), the same on every device."""

    def shift(x: Tensor, bits: int) -> Tensor:  # logical: PyTorch's >> keeps the sign
        return (x >> bits) & ((1 << (64 - bits)) - 1)

    x = (x ^ shift(x, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    x = (x ^ shift(x, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return x ^ shift(x, 31)


def first_cell(rows: Tensor, num_cells: int) -> Tensor:
    """The cell at which the search for a row begins: the upper 32 bits of its hash, scaled to the table."""
    upper = (mix(rows) >> 32) & 0xFFFFFFFF
    return (upper * num_cells) >> 32


def find(keys: Tensor, rows: Tensor, num: Tensor) -> Tensor:
    num_cells = keys.numel() - 1
    cells = torch.full(rows.shape, -1, dtype=torch.int64, device=rows.device)
    wanted = rows[: filled(rows, num)]
    position = torch.nonzero(wanted >= 0).squeeze(1)
    wanted = wanted[position]
    cell = first_cell(wanted, num_cells)
    while position.numel():
        key = keys[cell]
        found = key == wanted
        cells[position[found]] = cell[found]
        searching = ~found & (key != EMPTY)
        position, wanted = position[searching], wanted[searching]
        cell = (cell[searching] + 1) % num_cells
    return cells


def insert(keys: Tensor, rows: Tensor, num: Tensor) -> Tensor:
    num_cells = keys.numel() - 1
    cells = torch.full(rows.shape, -1, dtype=torch.int64, device=rows.device)
    wanted = rows[: filled(rows, num)]
    position = torch.nonzero(wanted >= 0).squeeze(1)
    wanted = wanted[position]
    cell = first_cell(wanted, num_cells)
    while position.numel():
        key = keys[cell]
        vacant = key < 0
        keys[cell[vacant]] = wanted[vacant]  # of several rows that want one cell, one wins
        won = vacant & (keys[cell] == wanted)
        cells[position[won]] = cell[won]
        position, wanted = position[~won], wanted[~won]
        cell = (cell[~won] + 1) % num_cells
    return cells


def build(keys: Tensor, position_at: Tensor, cell_of: Tensor, rows: Tensor) -> None:
    keys[:-1], keys[-1] = EMPTY, BARRED
    position_at.fill_(-1)
    cells = insert(keys, rows, torch.tensor([rows.numel()], dtype=torch.int32))
    present = torch.nonzero(cells >= 0).squeeze(1)
    position_at[cells[present]] = present.int()
    cell_of[: rows.numel()] = cells.int()
