"""Optimizer steps on records in Triton, with the arithmetic of the rules in `reference`.

`ops.backward_update` applies the same steps to sums that it keeps in registers, and its bits must be the same. So every
kernel that calls `step` is compiled without contraction of multiply and add into one instruction, and the order of
additions in a sum does not depend on the layout of values over threads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.row_optimizer import reference

NUM_COEFFICIENTS = {"sgd": 2, "adagrad": 2, "row_wise_adagrad": 2, "adam": 4}  # for the rules that have a kernel
MAX_WORDS = 1024  # of a record, loaded together
_MAX_HALVINGS = tl.constexpr(MAX_WORDS.bit_length() - 1)
_MAX_PROGRAMS = 132 * 8
_TILE = 1024  # words that a program loads together, over all its records


@triton.jit
def load_coefficients(coefficients, NUM: tl.constexpr):
    loaded: tl.tuple = ()
    for i in tl.static_range(NUM):
        loaded += (tl.load(coefficients + i),)
    return loaded


@triton.jit
def load_record(record, word, mask, RULE: tl.constexpr, DIM: tl.constexpr):
    """Load words of some records: the weights, and the state of each weight. `record` points to their first words."""
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
    """Sum [rows, words] to [rows] by adding neighbours until one is left: this order does not depend on the layout."""
    total = grad * grad
    for _ in tl.static_range(_MAX_HALVINGS):
        if total.shape[1] > 1:
            left, right = tl.split(tl.reshape(total, [total.shape[0], total.shape[1] // 2, 2]))
            total = left + right
    return tl.reshape(total, [total.shape[0]])


@triton.jit
def step(words, row_total, grad, coefficients, RULE: tl.constexpr):
    """The words of `load_record` after the step. row_total [rows] is the new state of row_wise_adagrad."""
    lr = coefficients[0]
    state: tl.tuple = ()
    if RULE == "sgd":
        decay = coefficients[1]
        change = tl.where(decay != 0.0, grad + decay * words[0], grad)
    elif RULE == "row_wise_adagrad":
        change = tl.div_rn(grad, tl.sqrt_rn(row_total)[:, None] + coefficients[1])
    elif RULE == "adagrad":
        total = words[1] + grad * grad
        change = tl.div_rn(grad, tl.sqrt_rn(total) + coefficients[1])
        state = (total,)
    else:
        tl.static_assert(RULE == "adam")
        mean = words[1] + (grad - words[1]) * coefficients[1]
        square = words[2] + (grad * grad - words[2]) * coefficients[2]
        change = tl.div_rn(mean, tl.sqrt_rn(square) + coefficients[3])
        state = (mean, square)
    return (words[0] - lr * change,) + state  # noqa: RUF005 (no unpacking in Triton)


@triton.jit
def _update(
    cache,
    slots,
    grads,
    num,
    coefficients,
    RULE: tl.constexpr,
    NUM_COEF: tl.constexpr,
    W: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    loaded = load_coefficients(coefficients, NUM_COEF)
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
            # Every warp loads its own copy of the totals: none may load what another has stored.
            tl.debug_barrier()
            tl.store(record + DIM, row_total, mask=present)
        for begin in tl.static_range(0, DIM, WORDS):
            word = begin + tl.arange(0, WORDS)[None, :]
            mask = present[:, None] & (word < DIM)
            words = load_record(record, word, mask, RULE, DIM)
            grad = tl.load(gradient + word, mask=mask, other=0.0)
            store_record(record, word, mask, step(words, row_total, grad, loaded, RULE), DIM)
        first += tl.num_programs(0) * ROWS


@triton.jit
def _scatter(cache, slots, records, num, W: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    position = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + position, mask=position < tl.load(num), other=-1).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    mask = (slot >= 0)[:, None] & (word < W)
    tl.store(cache + slot[:, None] * W + word, tl.load(records + position[:, None] * W + word, mask=mask), mask=mask)


def _rule_without_kernel(
    rule: str, cache: Tensor, slots: Tensor, grads: Tensor, num: Tensor, dim: int, hyper: Tensor | tuple[float, ...]
) -> None:
    """Apply a rule that has no kernel to copies of all records; only the first `num` are written back."""
    slots = slots[: grads.shape[0]]
    records = cache[slots.clamp(0, cache.shape[0] - 1).long()]
    reference.RULES[rule](records, grads[: slots.numel()], dim, reference.host_coefficients(rule, hyper))
    num_words = cache.shape[1]
    words = min(triton.next_power_of_2(num_words), MAX_WORDS)
    rows = _TILE // words
    grid = (triton.cdiv(slots.numel(), rows), triton.cdiv(num_words, words))
    _scatter[grid](cache, slots, records, num, W=num_words, ROWS=rows, WORDS=words)


def check_rule(rule: str) -> None:
    if rule not in reference.RULES:
        raise ValueError(f"unknown update rule {rule!r}; known are {', '.join(map(repr, reference.RULES))}")


def coefficients_on(device: torch.device, rule: str, hyper: Tensor | tuple[float, ...]) -> Tensor:
    """The coefficients of a rule that has a kernel as a float32 tensor on the device, without waiting for it."""
    if not isinstance(hyper, Tensor):
        values = torch.tensor(reference.coefficients(rule, hyper), dtype=torch.float32)
        hyper = values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
    assert hyper.dtype == torch.float32
    assert hyper.shape == (NUM_COEFFICIENTS[rule],)
    return hyper


def row_optimizer(
    rule: str, cache: Tensor, slots: Tensor, grads: Tensor, num: Tensor, dim: int, hyper: Tensor | tuple[float, ...]
) -> None:
    assert cache.is_contiguous()
    assert grads.is_contiguous()
    check_rule(rule)
    if slots.numel() == 0:
        return
    if rule not in NUM_COEFFICIENTS:
        _rule_without_kernel(rule, cache, slots, grads, num, dim, hyper)
        return
    words = min(triton.next_power_of_2(dim), MAX_WORDS)
    rows = min(_TILE // words, 128)
    grid = (min(triton.cdiv(slots.numel(), rows), _MAX_PROGRAMS),)
    _update[grid](
        cache,
        slots,
        grads,
        num,
        coefficients_on(cache.device, rule, hyper),
        RULE=rule,
        NUM_COEF=NUM_COEFFICIENTS[rule],
        W=cache.shape[1],
        DIM=dim,
        ROWS=rows,
        WORDS=words,
        num_warps=4,
        enable_fp_fusion=False,
    )
