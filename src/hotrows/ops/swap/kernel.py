"""Moves in Triton: the kernel reads and writes the store directly in host memory (zero copy)."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.swap.moves import Moves

# The kernel runs on few multiprocessors, with many bytes in flight on each: a matrix product needs the whole register
# file of a multiprocessor, and waits for every one that is occupied. Slow moves cost nothing as long as they take less
# time than a training step. That time grows with the lookups, so this is the number of words that one multiprocessor
# moves in each direction in the time in which one lookup is trained.
_WORDS_PER_LOOKUP = 2.6
# The programs of a matrix product run in pairs on neighbouring multiprocessors: one that the moves occupy blocks its
# neighbour too. So the moves occupy pairs, which only a cluster of two programs is sure to get.
_PAIR = 2
_FIRST_CAPABILITY_WITH_CLUSTERS = 9  # major compute capability
_MIN_UNPAIRED = 3  # multiprocessors, on devices without clusters
_MAX_MULTIPROCESSORS = 16
_NUM_WARPS = 32
_TILE = 16384  # words in flight per multiprocessor and direction
_MAX_WORDS = 512  # of a record in one iteration


@triton.jit(do_not_specialize=["words_per_program"])
def _swap(
    cache, store, slots, rows_out, rows_in, num, words_per_program,
    W: tl.constexpr, MOVES: tl.constexpr, WORDS: tl.constexpr, MIN_PROGRAMS: tl.constexpr,
):  # fmt: skip
    count = tl.load(num)
    wanted = tl.maximum(tl.cdiv(count.to(tl.int64) * W, words_per_program), MIN_PROGRAMS)
    num_programs = tl.minimum(wanted, tl.num_programs(0))
    first = tl.program_id(0).to(tl.int64) * MOVES
    while (first < count) & (tl.program_id(0) < num_programs):
        move = first + tl.arange(0, MOVES)
        inside = move < count
        at_slot = tl.load(slots + move, mask=inside, other=0).to(tl.int64) * W
        row_out = tl.load(rows_out + move, mask=inside, other=-1)
        row_in = tl.load(rows_in + move, mask=inside, other=-1)
        moves_out, moves_in = row_out >= 0, row_in >= 0
        for begin in tl.static_range(0, W, WORDS):
            word = begin + tl.arange(0, WORDS)[None, :]
            in_cache = cache + at_slot[:, None] + word
            # Both loads come first: they overlap, and the old record is read before the new one overwrites it.
            old = tl.load(in_cache, mask=moves_out[:, None] & (word < W), other=0.0)
            new = tl.load(store + row_in[:, None] * W + word, mask=moves_in[:, None] & (word < W), other=0.0)
            tl.store(store + row_out[:, None] * W + word, old, mask=moves_out[:, None] & (word < W))
            tl.store(in_cache, new, mask=moves_in[:, None] & (word < W))
        first += num_programs * MOVES


def swap(cache: Tensor, store: Tensor, moves: Moves) -> None:
    assert cache.is_contiguous()
    assert store.is_contiguous()
    num_words = cache.shape[1]
    max_moves = moves.slots.numel()
    if max_moves == 0:
        return
    pair = _PAIR if _has_clusters(cache) else 1
    words = min(triton.next_power_of_2(num_words), _MAX_WORDS)
    moves_per_program = pair * _TILE // words  # at least one word per thread, so that no two threads move the same word
    grid = (min(triton.cdiv(max_moves, moves_per_program), max(1, _MAX_MULTIPROCESSORS // pair)),)
    words_per_program = math.ceil(pair * _WORDS_PER_LOOKUP * max_moves / moves.sm_scale)
    _swap[grid](
        cache, store, moves.slots, moves.rows_out, moves.rows_in, moves.num, words_per_program,
        W=num_words, MOVES=moves_per_program, WORDS=words, MIN_PROGRAMS=1 if pair > 1 else _MIN_UNPAIRED,
        num_warps=_NUM_WARPS, num_ctas=pair,
    )  # fmt: skip


def _has_clusters(cache: Tensor) -> bool:
    return cache.is_cuda and torch.cuda.get_device_capability(cache.device)[0] >= _FIRST_CAPABILITY_WITH_CLUSTERS
