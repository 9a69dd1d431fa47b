"""Optimizer steps on records in Triton, with the arithmetic of the rules in `reference`.

`ops.update_rows` takes the same steps on sums it has just made, and its bits must be the same. So every kernel that
uses `step` is compiled without contraction of multiply and add, and no sum depends on how values lie on the threads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.row_optimizer import reference

NUM_NUMBERS = {"sgd": 2, "adagrad": 2, "row_wise_adagrad": 2, "adam": 4}  # of the rules that have a kernel
MOST_WORDS = 1024  # of a record at a time
_MOST_HALVINGS = tl.constexpr(MOST_WORDS.bit_length() - 1)
_MOST_PROGRAMS = 132 * 8
_TILE = 1024  # words at a time, over all records of a program


@triton.jit
def load_numbers(numbers, NUM: tl.constexpr):
    loaded: tl.tuple = ()
    for i in tl.static_range(NUM):
        loaded += (tl.load(numbers + i),)
    return loaded


@triton.jit
def load_record(record, word, mask, RULE: tl.constexpr, DIM: tl.constexpr):
    """The words of some records, their weights and what state goes with each; `record` points to their beginnings."""
    at = record[:, None] + word
    weight = tl.load(at, mask=mask, other=0.0)
    words: tl.tuple = (weight,)
    if RULE == "adagrad" or RULE == "adam":
        words += (tl.load(at + DIM, mask=mask, other=0.0),)
    if RULE == "adam":
        words += (tl.load(at + 2 * DIM, mask=mask, other=0.0),)
    return words


@triton.jit
def store_record(record, word, mask, words, DIM: tl.constexpr):
    for i in tl.static_range(len(words)):
        tl.store(record[:, None] + i * DIM + word, words[i], mask=mask)


@triton.jit
def sum_of_squares(grad):
    """[rows, words] to [rows], by adding neighbours until one is left: an order that no layout can change."""
    total = grad * grad
    for _ in tl.static_range(_MOST_HALVINGS):
        if total.shape[1] > 1:
            left, right = tl.split(tl.reshape(total, [total.shape[0], total.shape[1] // 2, 2]))
            total = left + right
    return tl.reshape(total, [total.shape[0]])


@triton.jit
def step(words, row_total, grad, numbers, RULE: tl.constexpr):
    """What `load_record` gave, after the step. row_total [rows] is the new state of row_wise_adagrad."""
    lr = numbers[0]
    state: tl.tuple = ()
    if RULE == "sgd":
        decay = numbers[1]
        change = tl.where(decay != 0.0, grad + decay * words[0], grad)
    elif RULE == "row_wise_adagrad":
        change = tl.div_rn(grad, tl.sqrt_rn(row_total)[:, None] + numbers[1])
    elif RULE == "adagrad":
        total = words[1] + grad * grad
        change = tl.div_rn(grad, tl.sqrt_rn(total) + numbers[1])
        state = (total,)
    else:
        tl.static_assert(RULE == "adam")
        mean = words[1] + (grad - words[1]) * numbers[1]
        square = words[2] + (grad * grad - words[2]) * numbers[2]
        change = tl.div_rn(mean, tl.sqrt_rn(square) + numbers[3])
        state = (mean, square)
    return (words[0] - lr * change,) + state  # noqa: RUF005 (no unpacking in Triton)


@triton.jit
def _update(
    cache,
    slots,
    grads,
    num,
    numbers,
    RULE: tl.constexpr,
    NUMBERS: tl.constexpr,
    W: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    loaded = load_numbers(numbers, NUMBERS)
    count = tl.load(num)
    first = tl.program_id(0).to(tl.int64) * ROWS
    while first < count:
        position = first + tl.arange(0, ROWS)
        slot = tl.load(slots + position, mask=position < count, other=-1).to(tl.int64)
        present = slot >= 0
        record = cache + slot * W
        gradient = grads + position[:, None] * DIM
        row_total = tl.zeros([ROWS], tl.float32)
        if RULE == "row_wise_adagrad":
            squares = tl.zeros([ROWS], tl.float32)
            for begin in tl.static_range(0, DIM, WORDS):
                word = begin + tl.arange(0, WORDS)[None, :]
                grad = tl.load(gradient + word, mask=present[:, None] & (word < DIM), other=0.0)
                squares += sum_of_squares(grad)
            row_total = tl.load(record + DIM, mask=present, other=0.0) + tl.div_rn(squares, 1.0 * DIM)
            tl.debug_barrier()  # every warp keeps its own copy of the totals: none may read what another has stored
            tl.store(record + DIM, row_total, mask=present)
        for begin in tl.static_range(0, DIM, WORDS):
            word = begin + tl.arange(0, WORDS)[None, :]
            mask = present[:, None] & (word < DIM)
            words = load_record(record, word, mask, RULE, DIM)
            grad = tl.load(gradient + word, mask=mask, other=0.0)
            store_record(record, word, mask, step(words, row_total, grad, loaded, RULE), DIM)
        first += tl.num_programs(0) * ROWS


@triton.jit
def _put(cache, slots, records, num, W: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    position = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + position, mask=position < tl.load(num), other=-1).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    mask = (slot >= 0)[:, None] & (word < W)
    tl.store(cache + slot[:, None] * W + word, tl.load(records + position[:, None] * W + word, mask=mask), mask=mask)


def _any_rule(
    rule: str, cache: Tensor, slots: Tensor, grads: Tensor, num: Tensor, dim: int, hyper: Tensor | tuple[float, ...]
) -> None:
    """A rule that has no kernel: on copies of as many records as there may be, of which only the real ones return."""
    slots = slots[: grads.shape[0]]
    records = cache[slots.clamp(0, cache.shape[0] - 1).long()]
    reference.RULES[rule](records, grads[: slots.numel()], dim, reference.rule_numbers(rule, hyper))
    num_words = cache.shape[1]
    words = min(triton.next_power_of_2(num_words), MOST_WORDS)
    rows = _TILE // words
    grid = (triton.cdiv(slots.numel(), rows), triton.cdiv(num_words, words))
    _put[grid](cache, slots, records, num, W=num_words, ROWS=rows, WORDS=words)


def check_rule(rule: str) -> None:
    if rule not in reference.RULES:
        raise ValueError(f"unknown update rule {rule!r}; known are {', '.join(map(repr, reference.RULES))}")


def numbers_on(device: torch.device, rule: str, hyper: Tensor | tuple[float, ...]) -> Tensor:
    """The numbers of a rule that has a kernel, float32 on the device, without waiting for it."""
    if not isinstance(hyper, Tensor):
        values = torch.tensor(reference.numbers(rule, hyper), dtype=torch.float32)
        hyper = values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
    assert hyper.dtype == torch.float32
    assert hyper.shape == (NUM_NUMBERS[rule],)
    return hyper


def row_optimizer(
    rule: str, cache: Tensor, slots: Tensor, grads: Tensor, num: Tensor, dim: int, hyper: Tensor | tuple[float, ...]
) -> None:
    assert cache.is_contiguous()
    assert grads.is_contiguous()
    check_rule(rule)
    if slots.numel() == 0:
        return
    if rule not in NUM_NUMBERS:
        _any_rule(rule, cache, slots, grads, num, dim, hyper)
        return
    words = min(triton.next_power_of_2(dim), MOST_WORDS)
    rows = min(_TILE // words, 128)
    grid = (min(triton.cdiv(slots.numel(), rows), _MOST_PROGRAMS),)
    _update[grid](
        cache,
        slots,
        grads,
        num,
        numbers_on(cache.device, rule, hyper),
        RULE=rule,
        NUMBERS=NUM_NUMBERS[rule],
        W=cache.shape[1],
        DIM=dim,
        ROWS=rows,
        WORDS=words,
        num_warps=4,
        enable_fp_fusion=False,
    )
