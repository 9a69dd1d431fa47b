"""Optimizer steps on records in Triton, with the arithmetic of the rules in `reference`."""

import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.row_update import reference

_MOST_PROGRAMS = 132 * 8
_MOST_WORDS = 1024  # of a record at a time
_TILE = 1024  # words at a time, over all records of a program


@triton.jit
def _update(
    cache,
    slots,
    grads,
    num,
    lr,
    eps,
    decay,
    mean_share,
    square_share,
    RULE: tl.constexpr,
    DECAYS: tl.constexpr,
    W: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    count = tl.load(num)
    first = tl.program_id(0).to(tl.int64) * ROWS
    while first < count:
        position = first + tl.arange(0, ROWS)
        slot = tl.load(slots + position, mask=position < count, other=-1).to(tl.int64)
        present = slot >= 0
        record = cache + slot[:, None] * W
        gradient = grads + position[:, None] * DIM
        if RULE == "row_wise_adagrad":
            squares = tl.zeros([ROWS], tl.float32)
            for begin in tl.static_range(0, DIM, WORDS):
                word = begin + tl.arange(0, WORDS)[None, :]
                grad = tl.load(gradient + word, mask=present[:, None] & (word < DIM), other=0.0)
                squares += tl.sum(grad * grad, 1)
            at_total = cache + slot * W + DIM
            row_total = tl.load(at_total, mask=present, other=0.0) + tl.div_rn(squares, 1.0 * DIM)
            tl.debug_barrier()  # every warp keeps its own copy of the totals: none may read what another has stored
            tl.store(at_total, row_total, mask=present)
            root = tl.sqrt_rn(row_total)[:, None]
        for begin in tl.static_range(0, DIM, WORDS):
            word = begin + tl.arange(0, WORDS)[None, :]
            mask = present[:, None] & (word < DIM)
            weight = tl.load(record + word, mask=mask, other=0.0)
            grad = tl.load(gradient + word, mask=mask, other=0.0)
            if RULE == "sgd":
                if DECAYS:
                    grad += decay * weight
                weight -= lr * grad
            elif RULE == "row_wise_adagrad":
                weight -= lr * tl.div_rn(grad, root + eps)
            elif RULE == "adagrad":
                total = tl.load(record + DIM + word, mask=mask, other=0.0) + grad * grad
                tl.store(record + DIM + word, total, mask=mask)
                weight -= lr * tl.div_rn(grad, tl.sqrt_rn(total) + eps)
            else:
                tl.static_assert(RULE == "adam")
                mean = tl.load(record + DIM + word, mask=mask, other=0.0)
                square = tl.load(record + 2 * DIM + word, mask=mask, other=0.0)
                mean += (grad - mean) * mean_share
                square += (grad * grad - square) * square_share
                tl.store(record + DIM + word, mean, mask=mask)
                tl.store(record + 2 * DIM + word, square, mask=mask)
                weight -= lr * tl.div_rn(mean, tl.sqrt_rn(square) + eps)
            tl.store(record + word, weight, mask=mask)
        first += tl.num_programs(0) * ROWS


@triton.jit
def _put(cache, slots, records, num, W: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    position = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + position, mask=position < tl.load(num), other=-1).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    mask = (slot >= 0)[:, None] & (word < W)
    tl.store(cache + slot[:, None] * W + word, tl.load(records + position[:, None] * W + word, mask=mask), mask=mask)


def _any_rule(
    rule: str, cache: Tensor, slots: Tensor, grads: Tensor, num: Tensor, dim: int, hyper: tuple[float, ...]
) -> None:
    """A rule that has no kernel: on copies of as many records as there may be, of which only the real ones return."""
    slots = slots[: grads.shape[0]]
    records = cache[slots.clamp(min=0).long()]
    reference.RULES[rule](records, grads[: slots.numel()], dim, hyper)
    num_words = cache.shape[1]
    words = min(triton.next_power_of_2(num_words), _MOST_WORDS)
    rows = _TILE // words
    grid = (triton.cdiv(slots.numel(), rows), triton.cdiv(num_words, words))
    _put[grid](cache, slots, records, num, W=num_words, ROWS=rows, WORDS=words)


def row_update(
    rule: str, cache: Tensor, slots: Tensor, grads: Tensor, num: Tensor, dim: int, hyper: tuple[float, ...]
) -> None:
    assert cache.is_contiguous()
    assert grads.is_contiguous()
    if rule not in reference.RULES:
        raise ValueError(f"unknown update rule {rule!r}; known are {', '.join(map(repr, reference.RULES))}")
    if slots.numel() == 0:
        return
    lr, eps, decay, mean_share, square_share = hyper[0], 0.0, 0.0, 0.0, 0.0
    if rule == "sgd":
        decay = hyper[1]
    elif rule in ("adagrad", "row_wise_adagrad"):
        eps = hyper[1]
    elif rule == "adam":
        mean_share, square_share, eps = 1 - hyper[1], 1 - hyper[2], hyper[3]
    else:
        _any_rule(rule, cache, slots, grads, num, dim, hyper)
        return
    words = min(triton.next_power_of_2(dim), _MOST_WORDS)
    rows = min(_TILE // words, 128)
    grid = (min(triton.cdiv(slots.numel(), rows), _MOST_PROGRAMS),)
    _update[grid](
        cache,
        slots,
        grads,
        num,
        lr,
        eps,
        decay,
        mean_share,
        square_share,
        RULE=rule,
        DECAYS=bool(decay),
        W=cache.shape[1],
        DIM=dim,
        ROWS=rows,
        WORDS=words,
        num_warps=4,
    )
