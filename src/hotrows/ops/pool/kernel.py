"""Pooled gather in Triton: a program takes several bags, and adds one lookup of each per iteration, in order."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_MAX_WORDS = 1024  # of a record in one program; longer records are split over programs
_TILE = 2048  # words that a program holds in registers, over all its bags


@triton.jit(do_not_specialize=["num_bags"])
def _pool(
    cache,
    slots,
    offsets,
    weights,
    pooled,
    winners,
    num_bags,
    STRIDE: tl.constexpr,
    DIM: tl.constexpr,
    MODE: tl.constexpr,
    BAGS: tl.constexpr,
    WORDS: tl.constexpr,
):
    bag = tl.program_id(0).to(tl.int64) * BAGS + tl.arange(0, BAGS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    inside = bag < num_bags
    if offsets is None:
        lookup = bag
        end = bag + inside.to(tl.int64)
    else:
        lookup = tl.load(offsets + bag, mask=inside, other=0).to(tl.int64)
        end = tl.load(offsets + bag + 1, mask=inside, other=0).to(tl.int64)
    value = tl.zeros([BAGS, WORDS], tl.float32)
    count = tl.zeros([BAGS], tl.int32)
    winner = tl.full([BAGS, WORDS], -1, tl.int32)
    while tl.max((lookup < end).to(tl.int32), 0) > 0:
        slot = tl.load(slots + lookup, mask=lookup < end, other=-1).to(tl.int64)
        present = slot >= 0
        candidate = tl.load(cache + slot[:, None] * STRIDE + word, mask=present[:, None] & (word < DIM), other=0.0)
        if MODE == "max":
            better = present[:, None] & ((candidate > value) | (winner < 0))
            value = tl.where(better, candidate, value)
            winner = tl.where(better, lookup[:, None].to(tl.int32), winner)
        else:
            if weights is not None:
                candidate *= tl.load(weights + lookup, mask=present, other=0.0)[:, None]
            value += candidate
            count += present.to(tl.int32)
        lookup += 1
    if MODE == "mean":
        value = tl.div_rn(value, tl.maximum(count, 1).to(tl.float32)[:, None])
    target = bag[:, None] * DIM + word
    kept = inside[:, None] & (word < DIM)
    tl.store(pooled + target, value, mask=kept)
    if MODE == "max":
        tl.store(winners + target, winner, mask=kept)


def pool(
    cache: Tensor, slots: Tensor, offsets: Tensor | None, weights: Tensor | None, dim: int, mode: str
) -> tuple[Tensor, Tensor | None]:
    num_bags = slots.numel() if offsets is None else offsets.numel() - 1
    pooled = cache.new_empty(num_bags, dim)
    winners = cache.new_empty(num_bags, dim, dtype=torch.int32) if mode == "max" else None
    if num_bags:
        words = min(triton.next_power_of_2(dim), _MAX_WORDS)
        bags = min(_TILE // words, 128)
        _pool[(triton.cdiv(num_bags, bags), triton.cdiv(dim, words))](
            cache,
            slots,
            offsets,
            weights,
            pooled,
            winners,
            num_bags,
            STRIDE=cache.stride(0),
            DIM=dim,
            MODE=mode,
            BAGS=bags,
            WORDS=words,
        )
    return pooled, winners
