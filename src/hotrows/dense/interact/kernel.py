"""Dot interaction in Triton: a program holds all vectors of a sample and writes its row of the output."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from hotrows.dense.linear.padding import aligned, with_row_stride
from hotrows.dense.tf32 import tf32_allowed

# Tuning parameters; benchmarks/micro/interact.py compares values.
FORWARD_SAMPLES = 1  # that a program processes one after the other
BACKWARD_SAMPLES = 1
STAGES = 2  # of the pipeline over a program's samples, if there are several
FORWARD_WORDS_PER_WARP = 1024  # of a sample's vectors, padded
BACKWARD_WORDS_PER_WARP = 1024

_MAX_WARPS = 8
_TILE = 8192  # words of the vectors at a time; longer vectors are processed in chunks
_MAX_WORDS = 128  # of a vector in one chunk
_MAX_WORDS_IEEE = 32  # likewise, if tensor cores are not used and the operands fill the registers


@triton.jit
def _load_vectors(
    summary,
    embedded,
    sample,
    vector,
    word,
    inside,
    VECTORS: tl.constexpr,
    FEATURES: tl.constexpr,
    DIM: tl.constexpr,
):
    """Load [summary, embedded...] as float32. Both loads have the shape of the result, so that no layout changes."""
    LEAD: tl.constexpr = VECTORS - FEATURES
    mask = inside & (vector >= LEAD) & (vector < VECTORS) & (word < DIM)
    source = embedded + sample * (FEATURES * DIM) + (vector - LEAD) * DIM + word
    vectors = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    if summary is not None:
        mask = inside & (vector == 0) & (word < DIM)
        first = tl.load(summary + sample * DIM + vector * DIM + word, mask=mask, other=0.0).to(tl.float32)
        vectors = tl.where(vector == 0, first, vectors)
    return vectors


@triton.jit(do_not_specialize=["num_samples"])
def _forward(
    summary,
    embedded,
    output,
    num_samples,
    VECTORS: tl.constexpr,
    FEATURES: tl.constexpr,
    DIM: tl.constexpr,
    STRIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    SAMPLES: tl.constexpr,
    STAGES: tl.constexpr,
    PADDED: tl.constexpr,
    WORDS: tl.constexpr,
    GAP: tl.constexpr,
):
    LEAD: tl.constexpr = (VECTORS - FEATURES) * DIM
    WIDTH: tl.constexpr = LEAD + VECTORS * (VECTORS - 1) // 2
    i = tl.arange(0, PADDED)[:, None]
    j = tl.arange(0, PADDED)[None, :]
    gap = WIDTH + tl.arange(0, GAP)
    for number in tl.range(SAMPLES, num_stages=STAGES):
        sample = tl.program_id(0).to(tl.int64) * SAMPLES + number
        inside = sample < num_samples
        products = tl.zeros([PADDED, PADDED], tl.float32)
        for start in tl.static_range(0, DIM, WORDS):
            word = start + tl.arange(0, WORDS)
            vectors = _load_vectors(summary, embedded, sample, i, word[None, :], inside, VECTORS, FEATURES, DIM).to(
                output.dtype.element_ty
            )
            products = tl.dot(vectors, tl.trans(vectors), products, input_precision=PRECISION)
            if summary is not None:
                mask = inside & (word < DIM)
                first = tl.load(summary + sample * DIM + word, mask=mask)
                tl.store(output + sample * STRIDE + word, first, mask=mask)
        target = output + (sample * STRIDE + LEAD) + (i * (i - 1) // 2 + j)
        tl.store(target, products, mask=inside & (j < i) & (i < VECTORS))
        if STRIDE > WIDTH:
            zeros = tl.zeros([GAP], output.dtype.element_ty)
            tl.store(output + sample * STRIDE + gap, zeros, mask=inside & (gap < STRIDE))


@triton.jit(do_not_specialize=["num_samples"])
def _backward(
    grad,
    summary,
    embedded,
    grad_summary,
    grad_embedded,
    num_samples,
    VECTORS: tl.constexpr,
    FEATURES: tl.constexpr,
    DIM: tl.constexpr,
    STRIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    SAMPLES: tl.constexpr,
    STAGES: tl.constexpr,
    PADDED: tl.constexpr,
    WORDS: tl.constexpr,
):
    """The gradient of vector i is the sum over j of its pair's gradient times vector j: one matrix product."""
    LEAD: tl.constexpr = (VECTORS - FEATURES) * DIM
    i = tl.arange(0, PADDED)[:, None]
    j = tl.arange(0, PADDED)[None, :]
    high = tl.maximum(i, j)
    low = tl.minimum(i, j)
    for number in tl.range(SAMPLES, num_stages=STAGES):
        sample = tl.program_id(0).to(tl.int64) * SAMPLES + number
        inside = sample < num_samples
        source = grad + (sample * STRIDE + LEAD) + (high * (high - 1) // 2 + low)
        grad_pair = tl.load(source, mask=inside & (low < high) & (high < VECTORS), other=0.0)
        for start in tl.static_range(0, DIM, WORDS):
            word = start + tl.arange(0, WORDS)
            vectors = _load_vectors(summary, embedded, sample, i, word[None, :], inside, VECTORS, FEATURES, DIM).to(
                grad.dtype.element_ty
            )
            total = tl.zeros([PADDED, WORDS], tl.float32)
            if summary is not None:
                direct = tl.load(grad + sample * STRIDE + word, mask=inside & (word < DIM), other=0.0).to(tl.float32)
                total = tl.where(i == 0, direct[None, :], total)
            total = tl.dot(grad_pair, vectors, total, input_precision=PRECISION)
            mask = inside & (i >= VECTORS - FEATURES) & (i < VECTORS) & (word < DIM)[None, :]
            target = grad_embedded + sample * (FEATURES * DIM) + (i - (VECTORS - FEATURES)) * DIM + word[None, :]
            tl.store(target, total, mask=mask)
            if summary is not None:
                mask = inside & (i == 0) & (word < DIM)[None, :]
                tl.store(grad_summary + sample * DIM + i * DIM + word[None, :], total, mask=mask)


class _Interact(torch.autograd.Function):
    """Keeps only its inputs for the backward pass."""

    @staticmethod
    def forward(ctx: Any, summary: Tensor | None, embedded: Tensor, dtype: torch.dtype) -> Tensor:
        summary = None if summary is None else summary.contiguous()
        embedded = embedded.contiguous()
        ctx.save_for_backward(summary, embedded)
        num_samples, num_features, dim = embedded.shape
        num_vectors = num_features + (summary is not None)
        width = num_vectors * (num_vectors - 1) // 2 + (0 if summary is None else dim)
        stride = aligned(width, dtype)
        output = embedded.new_empty(num_samples, stride, dtype=dtype)
        if num_samples:
            _forward[(triton.cdiv(num_samples, FORWARD_SAMPLES),)](
                summary,
                embedded,
                output,
                num_samples,
                STRIDE=stride,
                SAMPLES=FORWARD_SAMPLES,
                GAP=triton.next_power_of_2(max(1, stride - width)),
                **_sizes(num_vectors, num_features, dim, dtype, FORWARD_WORDS_PER_WARP),
            )
        return output[:, :width]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        summary, embedded = ctx.saved_tensors
        grad = with_row_stride(grad)
        grad_summary = None if summary is None else torch.empty_like(summary)
        grad_embedded = torch.empty_like(embedded)
        num_samples, num_features, dim = embedded.shape
        num_vectors = num_features + (summary is not None)
        if num_samples:
            _backward[(triton.cdiv(num_samples, BACKWARD_SAMPLES),)](
                grad,
                summary,
                embedded,
                grad_summary,
                grad_embedded,
                num_samples,
                STRIDE=grad.stride(0),
                SAMPLES=BACKWARD_SAMPLES,
                **_sizes(num_vectors, num_features, dim, grad.dtype, BACKWARD_WORDS_PER_WARP),
            )
        return grad_summary, grad_embedded, None


def interact(summary: Tensor | None, embedded: Tensor, dtype: torch.dtype) -> Tensor:
    output: Tensor = _Interact.apply(summary, embedded, dtype)
    return output


def _sizes(num_vectors: int, num_features: int, dim: int, dtype: torch.dtype, words_per_warp: int) -> dict[str, Any]:
    """The kernels' parameters. They depend on the shape of a sample alone: its bits must not depend on its batch."""
    ieee = dtype == torch.float32 and not tf32_allowed()
    padded = max(16, triton.next_power_of_2(num_vectors))  # the minimum of tl.dot is 16
    words = max(16, min(triton.next_power_of_2(dim), _MAX_WORDS, _TILE // padded))
    num_warps = min(max(1, padded * max(padded, words) // words_per_warp), _MAX_WARPS)
    return {
        "VECTORS": num_vectors,
        "FEATURES": num_features,
        "DIM": dim,
        "PRECISION": "ieee" if ieee else "tf32",
        "STAGES": STAGES,
        "PADDED": padded,
        "WORDS": min(words, _MAX_WORDS_IEEE) if ieee else words,
        "num_warps": num_warps,
    }
