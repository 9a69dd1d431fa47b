"""Moves in plain PyTorch."""

from torch import Tensor

from hotrows.ops.rows import filled


def swap(cache: Tensor, store: Tensor, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
    count = filled(slots, num)
    slots, rows_out, rows_in = slots[:count], rows_out[:count], rows_in[:count]
    leaves = rows_out >= 0
    store[rows_out[leaves]] = cache[slots[leaves]]
    comes = rows_in >= 0
    cache[slots[comes]] = store[rows_in[comes]]
