"""Moves in Triton: the kernel reads and writes the store in host memory itself (zero copy), without the CPU.

A program first writes out all records that leave its slots, then fetches those that come: the two directions at once
are slower than one after the other. A record of a large table takes microseconds to arrive, so many are on the way at a
time, into shared memory, by asynchronous copies.
"""

import triton
import triton.language as tl
from torch import Tensor

# Few programs with many bytes on the way each: a matrix product wants the whole register file of every multiprocessor,
# and would wait for each one that is taken. Slower moves cost nothing as long as they take less time than a step, which
# grows with the lookups.
_MOST_PROGRAMS = 16
_FEWEST_PROGRAMS = 3
_WORDS_PER_LOOKUP = 2  # that a program has the time for
_NUM_WARPS = 8
_TILE = 4096  # words at a time and program
_STAGES_OUT, _STAGES_IN = 3, 6  # one more than tiles that are on the way
_MOST_WORDS = 512  # of a record at a time


@triton.jit(do_not_specialize=["share"])
def _swap(
    cache, store, slots, rows_out, rows_in, num, share,
    W: tl.constexpr, MOVES: tl.constexpr, WORDS: tl.constexpr, FEWEST: tl.constexpr,
    STAGES_OUT: tl.constexpr, STAGES_IN: tl.constexpr,
):  # fmt: skip
    count = tl.load(num)
    wanted = tl.maximum(tl.cdiv(count.to(tl.int64) * W, share), FEWEST)
    num_programs = tl.minimum(wanted, tl.num_programs(0)).to(tl.int32)
    program = tl.program_id(0)
    end = tl.where(program < num_programs, count, 0)
    for first in tl.range(program * MOVES, end, num_programs * MOVES, num_stages=STAGES_OUT):
        move = first + tl.arange(0, MOVES)
        at_slot = tl.load(slots + move, mask=move < count, other=0).to(tl.int64) * W
        row = tl.load(rows_out + move, mask=move < count, other=-1)
        for begin in tl.static_range(0, W, WORDS):
            word = begin + tl.arange(0, WORDS)[None, :]
            there = (row >= 0)[:, None] & (word < W)
            record = tl.load(cache + at_slot[:, None] + word, mask=there, other=0.0)
            tl.store(store + row[:, None] * W + word, record, mask=there)
    tl.debug_barrier()  # all threads have read what is overwritten now
    for first in tl.range(program * MOVES, end, num_programs * MOVES, num_stages=STAGES_IN):
        move = first + tl.arange(0, MOVES)
        at_slot = tl.load(slots + move, mask=move < count, other=0).to(tl.int64) * W
        row = tl.load(rows_in + move, mask=move < count, other=-1)
        for begin in tl.static_range(0, W, WORDS):
            word = begin + tl.arange(0, WORDS)[None, :]
            there = (row >= 0)[:, None] & (word < W)
            record = tl.load(store + row[:, None] * W + word, mask=there, other=0.0)
            tl.store(cache + at_slot[:, None] + word, record, mask=there)


def swap(cache: Tensor, store: Tensor, slots: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
    assert cache.is_contiguous()
    assert store.is_contiguous()
    num_words = cache.shape[1]
    if slots.numel() == 0:
        return
    words = min(triton.next_power_of_2(num_words), _MOST_WORDS)
    moves = _TILE // words  # as many words as threads at the least, so that each is moved by one alone
    grid = (min(triton.cdiv(slots.numel(), moves), _MOST_PROGRAMS),)
    _swap[grid](
        cache, store, slots, rows_out, rows_in, num, _WORDS_PER_LOOKUP * slots.numel(),
        W=num_words, MOVES=moves, WORDS=words, FEWEST=_FEWEST_PROGRAMS, STAGES_OUT=_STAGES_OUT, STAGES_IN=_STAGES_IN,
        num_warps=_NUM_WARPS,
    )  # fmt: skip
