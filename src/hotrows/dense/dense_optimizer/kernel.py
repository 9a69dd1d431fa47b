"""Steps of dense optimizers in Triton: one launch for many tensors, which are divided into tiles.

Multiply and add are contracted exactly where PyTorch's fused kernels contract them, and division and root are correctly
rounded, so bits do not depend on the tiles. A step differs from PyTorch's in the last bit at most. For Adam that holds
for betas of at least ½, unless PyTorch's power of a beta differs, which is correctly rounded here.
"""

import math
from collections.abc import Iterator

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # elements of a program
MAX_TENSORS = 32  # of a launch
NUM_WARPS = 4


@triton.jit
def _own(of_tensors, firsts):
    """Of one value for each tensor, that of this program's tensor. `firsts` has the first program of each tensor."""
    own = of_tensors[0]
    for i in tl.static_range(1, len(of_tensors)):
        own = tl.where(tl.program_id(0) >= firsts[i], of_tensors[i], own)
    return own


@triton.jit
def _sgd_tile(
    param,
    grad,
    buffer,
    mask,
    lr,
    weight_decay,
    momentum,
    dampening,
    NESTEROV: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    FIRST_STEP: tl.constexpr,
):
    old = tl.load(param, mask=mask)
    change = tl.load(grad, mask=mask)
    if MAXIMIZE:
        change = -change
    if weight_decay is not None:
        change = tl.fma(old, weight_decay, change)
    if buffer is not None:
        velocity = change
        if not FIRST_STEP:
            velocity = tl.fma(tl.load(buffer, mask=mask), momentum, (1.0 - dampening) * change)
        tl.store(buffer, velocity, mask=mask)
        change = tl.fma(velocity, momentum, change) if NESTEROV else velocity
    tl.store(param, tl.fma(change, -lr, old), mask=mask)


@triton.jit
def _sgd(
    weights,  # Triton reserves the name params
    grads,
    buffers,
    sizes,
    firsts,
    lr,
    weight_decay,
    momentum,
    dampening,
    NESTEROV: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    FIRST_STEP: tl.constexpr,
    TILE: tl.constexpr,
):
    begin = (tl.program_id(0) - _own(firsts, firsts)).to(tl.int64) * TILE
    size = _own(sizes, firsts)
    at = begin + tl.arange(0, TILE)
    param = _own(weights, firsts) + at
    grad = _own(grads, firsts) + at
    buffer = None
    if buffers is not None:
        buffer = _own(buffers, firsts) + at
    rate = tl.load(lr)
    if begin + TILE <= size:  # without a mask, four elements are loaded at once
        _sgd_tile(
            param, grad, buffer, None, rate, weight_decay, momentum, dampening, NESTEROV, MAXIMIZE, FIRST_STEP
        )  # fmt: skip
    else:
        _sgd_tile(
            param, grad, buffer, at < size, rate, weight_decay, momentum, dampening, NESTEROV, MAXIMIZE, FIRST_STEP
        )  # fmt: skip


@triton.jit
def _adam_tile(
    param,
    grad,
    mean,
    square,
    mask,
    step,
    lr,
    beta1,
    beta2,
    log_beta1,
    log_beta2,
    weight_decay,
    eps,
    MAXIMIZE: tl.constexpr,
    DECOUPLED: tl.constexpr,
):
    old = tl.load(param, mask=mask)
    change = tl.load(grad, mask=mask)
    old_mean = tl.load(mean, mask=mask)
    old_square = tl.load(square, mask=mask)
    # Behind the loads above, so that these do not wait for the step count.
    step_size = tl.div_rn(lr, 1.0 - tl.exp(step.to(tl.float64) * log_beta1).to(tl.float32))
    root = tl.sqrt_rn(1.0 - tl.exp(step.to(tl.float64) * log_beta2).to(tl.float32))
    if MAXIMIZE:
        change = -change
    if weight_decay is not None:
        if DECOUPLED:
            old = tl.fma(old, -(lr * weight_decay), old)
        else:
            change = tl.fma(old, weight_decay, change)
    new_mean = tl.fma(old_mean, beta1, (1.0 - beta1) * change)
    new_square = tl.fma(old_square, beta2, (1.0 - beta2) * (change * change))
    denominator = tl.div_rn(tl.sqrt_rn(new_square), root) + eps
    tl.store(param, old - tl.div_rn(step_size * new_mean, denominator), mask=mask)
    tl.store(mean, new_mean, mask=mask)
    tl.store(square, new_square, mask=mask)


@triton.jit
def _adam(
    weights,  # Triton reserves the name params
    grads,
    means,
    squares,
    steps,
    sizes,
    firsts,
    lr,
    beta1,
    beta2,
    log_beta1: tl.float64,
    log_beta2: tl.float64,
    weight_decay,
    eps,
    MAXIMIZE: tl.constexpr,
    DECOUPLED: tl.constexpr,
    TILE: tl.constexpr,
):
    begin = (tl.program_id(0) - _own(firsts, firsts)).to(tl.int64) * TILE
    size = _own(sizes, firsts)
    at = begin + tl.arange(0, TILE)
    param = _own(weights, firsts) + at
    grad = _own(grads, firsts) + at
    mean = _own(means, firsts) + at
    square = _own(squares, firsts) + at
    step, rate = tl.load(_own(steps, firsts)), tl.load(lr)
    if begin + TILE <= size:  # without a mask, four elements are loaded at once
        _adam_tile(
            param, grad, mean, square, None, step, rate, beta1, beta2, log_beta1, log_beta2, weight_decay, eps,
            MAXIMIZE, DECOUPLED,
        )  # fmt: skip
    else:
        _adam_tile(
            param, grad, mean, square, at < size, step, rate, beta1, beta2, log_beta1, log_beta2, weight_decay, eps,
            MAXIMIZE, DECOUPLED,
        )  # fmt: skip


def sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    lr: Tensor,
    weight_decay: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
) -> None:
    lists = [params, grads] if momentum == 0 else [params, grads, buffers]
    for num_tiles, sizes, firsts, parts in _launches(lists):
        _sgd[(num_tiles,)](
            parts[0],
            parts[1],
            None if momentum == 0 else parts[2],
            sizes,
            firsts,
            lr,
            None if weight_decay == 0 else weight_decay,
            momentum,
            dampening,
            NESTEROV=nesterov,
            MAXIMIZE=maximize,
            FIRST_STEP=is_first_step,
            TILE=TILE,
            num_warps=NUM_WARPS,
            enable_fp_fusion=False,
        )


def adam(
    params: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    lr: Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    decoupled: bool,
) -> None:
    beta1, beta2 = (float(np.float32(beta)) for beta in (beta1, beta2))
    for num_tiles, sizes, firsts, parts in _launches([params, grads, means, squares, steps]):
        _adam[(num_tiles,)](
            *parts,
            sizes,
            firsts,
            lr,
            beta1,
            beta2,
            _log(beta1),
            _log(beta2),
            None if weight_decay == 0 else weight_decay,
            eps,
            MAXIMIZE=maximize,
            DECOUPLED=decoupled,
            TILE=TILE,
            num_warps=NUM_WARPS,
            enable_fp_fusion=False,
        )


def _launches(
    lists: list[list[Tensor]],
) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...], list[tuple[Tensor, ...]]]]:
    """For each launch: the number of tiles, each tensor's size and first tile, and the tensors of each list."""
    each = [tensors for tensors in zip(*lists, strict=True) if tensors[0].numel() > 0]
    for begin in range(0, len(each), MAX_TENSORS):
        some = each[begin : begin + MAX_TENSORS]
        sizes = tuple(tensors[0].numel() for tensors in some)
        firsts, num_tiles = [], 0
        for size in sizes:
            firsts.append(num_tiles)
            num_tiles += triton.cdiv(size, TILE)
        yield num_tiles, sizes, tuple(firsts), list(zip(*some, strict=True))


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0 else -math.inf
