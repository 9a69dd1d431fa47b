"""Moves in plain PyTorch."""

from torch import Tensor

from hotrows.ops.rows import filled
from hotrows.ops.swap.moves import Moves


def swap(cache: Tensor, store: Tensor, moves: Moves) -> None:
    count = filled(moves.slots, moves.num)
    slots, rows_out, rows_in = moves.slots[:count], moves.rows_out[:count], moves.rows_in[:count]
    moves_out = rows_out >= 0
    store[rows_out[moves_out]] = cache[slots[moves_out]]
    moves_in = rows_in >= 0
    cache[slots[moves_in]] = store[rows_in[moves_in]]
