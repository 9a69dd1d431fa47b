"""Moves in Triton: the kernel reads and writes the store in host memory itself (zero copy), without the CPU."""

import triton
import triton.language as tl
from torch import Tensor

_MOVES = 8  # at a time and program
_MOST_PROGRAMS = 132  # these saturate PCIe; more would only take room from the training that runs beside
_MOST_WORDS = 512  # at a time, which with 8 moves and 4 warps stays in registers


@triton.jit
def _swap(cache, store, slots, rows_out, rows_in, num, W: tl.constexpr, MOVES: tl.constexpr, WORDS: tl.constexpr):
    count = tl.load(num)
    first = tl.program_id(0).to(tl.int64) * MOVES
    while first < count:
        move = first + tl.arange(0, MOVES)
        inside = move < count
        at_slot = tl.load(slots + move, mask=inside, other=0).to(tl.int64) * W
        row_out = tl.load(rows_out + move, mask=inside, other=-1)
        row_in = tl.load(rows_in + move, mask=inside, other=-1)
        leaves, comes = row_out >= 0, row_in >= 0
        for begin in tl.static_range(0, W, WORDS):
            word = begin + tl.arange(0, WORDS)[None, :]
            in_cache = cache + at_slot[:, None] + word
            # both loads first: they overlap, and the old record is read before the new one takes its slot
            old = tl.load(in_cache, mask=leaves[:, None] & (word < W), other=0.0)
            new = tl.load(store + row_in[:, None] * W + word, mask=comes[:, None] & (word < W), other=0.0)
            tl.store(store + row_out[:, None] * W + word, old, mask=leaves[:, None] & (word < W))
            tl.store(in_cache, new, mask=comes[:, None] & (word < W))
        first += tl.num_programs(0) * MOVES


def swap(cache: Tensor, store: Tensor, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
    assert cache.is_contiguous()
    assert store.is_contiguous()
    num_words = cache.shape[1]
    if slots.numel() == 0:
        return
    grid = (min(triton.cdiv(slots.numel(), _MOVES), _MOST_PROGRAMS),)
    words = min(triton.next_power_of_2(num_words), _MOST_WORDS)
    num_warps = 4 if _MOVES * words >= 128 else 1  # a word for every thread, so that each is moved by one alone
    _swap[grid](
        cache, store, slots, rows_out, rows_in, num, W=num_words, MOVES=_MOVES, WORDS=words, num_warps=num_warps
    )
