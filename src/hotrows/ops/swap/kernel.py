"""Moves in Triton: the kernel reads and writes the store in host memory itself (zero copy), without the CPU."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.swap.moves import Moves

# Few multiprocessors with many bytes in flight each: a matrix product wants the whole register file of every one, and
# would wait for each that is taken. Slower moves cost nothing as long as they take less time than a step, which grows
# with the lookups: a multiprocessor moves a few words, each way, in the time that a lookup trains.
_WORDS_PER_LOOKUP = 2.6
# A matrix product's programs come in pairs, on the two multiprocessors of a unit: where moves have one of these, the
# other is lost to the product too. So moves take both. Which are one unit, the device knows if programs are clusters.
_PAIR = 2
_CLUSTERS_FROM = 9  # compute capability
_FEWEST_ALONE = 3  # where there are no clusters
_MOST = 16  # multiprocessors
_NUM_WARPS = 32
_TILE = 16384  # words at a time and multiprocessor, each way
_MOST_WORDS = 512  # of a record at a time


@triton.jit(do_not_specialize=["share"])
def _swap(
    cache, store, slots, rows_out, rows_in, num, share,
    W: tl.constexpr, MOVES: tl.constexpr, WORDS: tl.constexpr, FEWEST: tl.constexpr,
):  # fmt: skip
    count = tl.load(num)
    wanted = tl.maximum(tl.cdiv(count.to(tl.int64) * W, share), FEWEST)
    num_programs = tl.minimum(wanted, tl.num_programs(0))
    first = tl.program_id(0).to(tl.int64) * MOVES
    while (first < count) & (tl.program_id(0) < num_programs):
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
        first += num_programs * MOVES


def swap(cache: Tensor, store: Tensor, moves: Moves) -> None:
    assert cache.is_contiguous()
    assert store.is_contiguous()
    num_words = cache.shape[1]
    most = moves.slots.numel()
    if most == 0:
        return
    pair = _PAIR if _has_clusters(cache) else 1
    words = min(triton.next_power_of_2(num_words), _MOST_WORDS)
    at_once = pair * _TILE // words  # as many words as threads at the least, so that each is moved by one alone
    grid = (min(triton.cdiv(most, at_once), max(1, _MOST // pair)),)
    share = math.ceil(pair * _WORDS_PER_LOOKUP * most / moves.haste)
    _swap[grid](
        cache, store, moves.slots, moves.rows_out, moves.rows_in, moves.num, share,
        W=num_words, MOVES=at_once, WORDS=words, FEWEST=1 if pair > 1 else _FEWEST_ALONE,
        num_warps=_NUM_WARPS, num_ctas=pair,
    )  # fmt: skip


def _has_clusters(cache: Tensor) -> bool:
    return cache.is_cuda and torch.cuda.get_device_capability(cache.device)[0] >= _CLUSTERS_FROM
