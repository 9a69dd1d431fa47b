"""The mean binary cross entropy in Triton: one program sums up a batch, several programs a very large one.

If there are several, each writes the sum of its samples, a part, and one more program adds the parts in their order, so
that equal inputs give equal bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 8192  # samples that a program processes at a time
MAX_TILES = 8  # of a program
NUMBERS_PER_WARP = 256
BACKWARD_TILE = 512

_MAX_WARPS = 32


@triton.jit
def _log1p(x):
    """log(1 + x) for 0 ≤ x ≤ 1, exact to float32 even if x is tiny: 2·artanh(x / (x + 2)) as a series."""
    ratio = x / (x + 2.0)
    square = ratio * ratio
    series = square * (1.0 / 17.0) + 1.0 / 15.0
    series = square * series + 1.0 / 13.0
    series = square * series + 1.0 / 11.0
    series = square * series + 1.0 / 9.0
    series = square * series + 1.0 / 7.0
    series = square * series + 1.0 / 5.0
    series = square * series + 1.0 / 3.0
    return 2.0 * ratio + 2.0 * ratio * (square * series)


@triton.jit(do_not_specialize=["num_samples", "num_parts"])
def _sum_losses(logits, label, parts, num_samples, num_parts, TILES: tl.constexpr, TILE: tl.constexpr):
    """The sum of each program's samples, or their mean if there is only one program."""
    total = tl.zeros([TILE], tl.float32)
    start = tl.program_id(0).to(tl.int64) * (TILES * TILE)
    for _ in tl.range(TILES):
        sample = start + tl.arange(0, TILE)
        mask = sample < num_samples
        x = tl.load(logits + sample, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(label + sample, mask=mask, other=0.0).to(tl.float32)
        # These are PyTorch's terms, so that the loss is finite exactly if PyTorch's is.
        log_sigmoid = tl.minimum(x, 0.0) - _log1p(tl.exp(-tl.abs(x)))
        total += tl.where(mask, (1.0 - y) * x - log_sigmoid, 0.0)
        start += TILE
    part = tl.sum(total, 0)
    if num_parts == 1:
        part = part / num_samples.to(tl.float32)
    tl.store(parts + tl.program_id(0), part)


@triton.jit(do_not_specialize=["num_samples", "num_parts"])
def _mean(parts, loss, num_samples, num_parts, TILE: tl.constexpr):
    total = tl.zeros([TILE], tl.float32)
    start = 0
    while start < num_parts:
        part = start + tl.arange(0, TILE)
        total += tl.load(parts + part, mask=part < num_parts, other=0.0)
        start += TILE
    tl.store(loss, tl.sum(total, 0) / num_samples.to(tl.float32))


@triton.jit(do_not_specialize=["num_samples"])
def _backward(logits, label, grad, grad_logits, num_samples, TILE: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = sample < num_samples
    x = tl.load(logits + sample, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(label + sample, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(grad).to(tl.float32) / num_samples.to(tl.float32)
    tl.store(grad_logits + sample, (1.0 / (1.0 + tl.exp(-x)) - y) * scale, mask=mask)


class _BceLoss(torch.autograd.Function):
    """Keeps its inputs."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, label: Tensor) -> Tensor:
        logits, label = logits.contiguous(), label.contiguous()
        ctx.save_for_backward(logits, label)
        num_samples = logits.numel()
        tile = min(triton.next_power_of_2(num_samples), TILE)
        num_tiles = min(triton.next_power_of_2(triton.cdiv(num_samples, tile)), MAX_TILES)
        num_parts = triton.cdiv(num_samples, tile * num_tiles)
        loss = logits.new_empty((), dtype=torch.float32)
        parts = loss if num_parts == 1 else loss.new_empty(num_parts)
        _sum_losses[(num_parts,)](
            logits, label, parts, num_samples, num_parts, TILES=num_tiles, TILE=tile, num_warps=_num_warps(tile)
        )
        if num_parts > 1:
            tile = min(triton.next_power_of_2(num_parts), TILE)
            _mean[(1,)](parts, loss, num_samples, num_parts, TILE=tile, num_warps=_num_warps(tile))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, label = ctx.saved_tensors
        grad_logits = torch.empty_like(logits)
        _backward[(triton.cdiv(logits.numel(), BACKWARD_TILE),)](
            logits, label, grad, grad_logits, logits.numel(), TILE=BACKWARD_TILE, num_warps=_num_warps(BACKWARD_TILE)
        )
        return grad_logits, None


def bce_loss(logits: Tensor, label: Tensor) -> Tensor:
    """The loss of tensors of one shape that are not empty."""
    loss: Tensor = _BceLoss.apply(logits, label)
    return loss


def _num_warps(numbers: int) -> int:
    return min(max(1, numbers // NUMBERS_PER_WARP), _MAX_WARPS)
