"""The inputs of a Wide & Deep model in Triton: forward reads the pooled rows once, backward writes their gradient once.

Pooled rows usually have an odd number of words, so they are read word by word, adjacent words by adjacent threads. The
rows of the deep input are aligned, and the pooled rows' gradient is written as one long array in aligned tiles.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from hotrows.dense.linear.padding import aligned, with_row_stride

# Tuning parameters; benchmarks/micro/wide_deep_input.py compares values.
FORWARD_TILE = 2048  # numbers of short rows that a program writes
FORWARD_COLUMNS = 4096  # of a long row that a program writes at a time; all their loads are in flight together
FORWARD_VECTOR = 2  # adjacent numbers that a thread writes at once; with more, a warp's reads are too far apart
BACKWARD_TILE = 2048
SUM_TILE = 4096  # dense numbers that the summing program reads at a time
NUMBERS_PER_WARP = 512

_MAX_WARPS = 8


@triton.jit(do_not_specialize=["num_rows"])
def _forward(
    dense,
    embedded,
    weight,
    bias,
    deep,
    wide,
    num_rows,
    DENSE: tl.constexpr,
    FEATURES: tl.constexpr,
    DIM: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
    DENSE_BLOCK: tl.constexpr,
    FEATURE_BLOCK: tl.constexpr,
):
    """Rows of the deep input with their padding, and their wide sums."""
    WIDTH: tl.constexpr = DENSE + FEATURES * DIM
    LENGTH: tl.constexpr = FEATURES * (DIM + 1)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = rows[:, None]
    inside = row < num_rows
    for start in tl.static_range(0, STRIDE, COLUMNS):
        column = tl.max_contiguous((start + tl.arange(0, COLUMNS))[None, :], [1, VECTOR])
        position = column - DENSE  # in the vectors
        mask = inside & (position >= 0) & (column < WIDTH)
        # A wide weight follows each vector before this one.
        source = embedded + row * LENGTH + (position + position // DIM)
        values = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        if start < DENSE:
            first = tl.load(dense + row * DENSE + column, mask=inside & (column < DENSE), other=0.0)
            values = tl.where(column < DENSE, first.to(tl.float32), values)
        tl.store(deep + row * STRIDE + column, values, mask=inside & (column < STRIDE))
    feature = tl.arange(0, FEATURE_BLOCK)[None, :]
    source = embedded + row * LENGTH + (feature * (DIM + 1) + DIM)
    total = tl.sum(tl.load(source, mask=inside & (feature < FEATURES), other=0.0).to(tl.float32), 1)
    if weight is not None:
        column = tl.arange(0, DENSE_BLOCK)[None, :]
        values = tl.load(dense + row * DENSE + column, mask=inside & (column < DENSE), other=0.0).to(tl.float32)
        weights = tl.load(weight + column, mask=column < DENSE, other=0.0).to(tl.float32)
        total += tl.sum(values * weights, 1) + tl.load(bias).to(tl.float32)
    tl.store(wide + rows, total, mask=rows < num_rows)


@triton.jit
def _sum_dense(
    grad,
    dense,
    grad_weight,
    grad_bias,
    num_rows,
    DENSE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradients of the layer over the dense features. One program sums them up, so their order is fixed."""
    column = tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    total_bias = tl.zeros([ROWS], tl.float32)
    start = 0
    while start < num_rows:
        rows = (start + tl.arange(0, ROWS)).to(tl.int64)
        values = tl.load(grad + rows, mask=rows < num_rows, other=0.0).to(tl.float32)
        mask = (rows < num_rows)[:, None] & (column < DENSE)[None, :]
        inputs = tl.load(dense + rows[:, None] * DENSE + column[None, :], mask=mask, other=0.0).to(tl.float32)
        total += values[:, None] * inputs
        total_bias += values
        start += ROWS
    tl.store(grad_weight + column, tl.sum(total, 0), mask=column < DENSE)
    tl.store(grad_bias, tl.sum(total_bias, 0))


@triton.jit(do_not_specialize=["num_rows", "grad_stride"])
def _backward(
    grad_deep,
    grad_wide,
    dense,
    grad_embedded,
    grad_weight,
    grad_bias,
    num_rows,
    grad_stride,
    DENSE: tl.constexpr,
    FEATURES: tl.constexpr,
    DIM: tl.constexpr,
    SUMS: tl.constexpr,
    TILE: tl.constexpr,
    SUM_ROWS: tl.constexpr,
    DENSE_BLOCK: tl.constexpr,
):
    """The gradient of the pooled rows, a tile by each program. The first SUMS programs make the layer's gradients."""
    LENGTH: tl.constexpr = FEATURES * (DIM + 1)
    program = tl.program_id(0)
    if grad_weight is not None:  # noqa: SIM102  (known when the kernel is compiled, unlike the other condition)
        if program < SUMS:
            _sum_dense(grad_wide, dense, grad_weight, grad_bias, num_rows, DENSE, SUM_ROWS, DENSE_BLOCK)
    if grad_embedded is not None:  # noqa: SIM102
        if program >= SUMS:
            start = (program - SUMS).to(tl.int64) * TILE
            first_row = start // LENGTH
            position = (start - first_row * LENGTH).to(tl.int32) + tl.arange(0, TILE)  # from the begin of that row
            row = first_row + position // LENGTH
            position = position % LENGTH
            feature = position // (DIM + 1)
            word = position - feature * (DIM + 1)
            inside = row < num_rows
            source = grad_deep + row * grad_stride + (position - feature + DENSE)
            values = tl.load(source, mask=inside & (word < DIM), other=0.0).to(tl.float32)
            weights = tl.load(grad_wide + row, mask=inside & (word == DIM), other=0.0).to(tl.float32)
            target = grad_embedded + start + tl.arange(0, TILE)
            tl.store(target, tl.where(word < DIM, values, weights), mask=inside)


class _WideDeepInput(torch.autograd.Function):
    """Keeps the dense features and the layer over them, and nothing of the pooled rows."""

    @staticmethod
    def forward(
        ctx: Any,
        dense: Tensor,
        embedded: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        dtype: torch.dtype,
        wide_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        dense, embedded = dense.contiguous(), embedded.contiguous()
        weight = None if weight is None else weight.contiguous()
        num_rows, num_features, length = embedded.shape
        num_dense, dim = dense.shape[1], length - 1
        width = num_dense + num_features * dim
        stride = aligned(width, dtype)
        columns = min(triton.next_power_of_2(stride), FORWARD_COLUMNS)
        rows = max(1, FORWARD_TILE // columns)
        deep = embedded.new_empty(num_rows, stride, dtype=dtype)
        wide = embedded.new_empty(num_rows, dtype=wide_dtype)
        _forward[(triton.cdiv(num_rows, rows),)](
            dense,
            embedded,
            weight,
            bias,
            deep,
            wide,
            num_rows,
            DENSE=num_dense,
            FEATURES=num_features,
            DIM=dim,
            STRIDE=stride,
            ROWS=rows,
            COLUMNS=columns,
            VECTOR=FORWARD_VECTOR,
            DENSE_BLOCK=triton.next_power_of_2(max(1, num_dense)),
            FEATURE_BLOCK=triton.next_power_of_2(num_features),
            num_warps=_num_warps(rows * columns),
        )
        ctx.shape, ctx.dtype = embedded.shape, embedded.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(dense, weight)
        return deep[:, :width], wide

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_deep: Tensor, grad_wide: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, None, None]:
        dense, weight = ctx.saved_tensors
        needs_dense, needs_embedded, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        num_rows, num_features, length = ctx.shape
        num_dense = dense.shape[1]
        grad_deep, grad_wide = with_row_stride(grad_deep), grad_wide.contiguous()
        grad_dense = grad_embedded = grad_weight = grad_bias = None
        if needs_embedded:
            grad_embedded = grad_deep.new_empty(ctx.shape, dtype=ctx.dtype)
        if needs_weight or needs_bias:
            grad_weight, grad_bias = torch.empty_like(weight), dense.new_empty(1, dtype=ctx.bias_dtype)
        num_tiles = triton.cdiv(grad_embedded.numel(), BACKWARD_TILE) if grad_embedded is not None else 0
        num_sums = int(grad_weight is not None)
        if num_tiles + num_sums:
            block = triton.next_power_of_2(max(1, num_dense))
            _backward[(num_tiles + num_sums,)](
                grad_deep,
                grad_wide,
                dense,
                grad_embedded,
                grad_weight,
                grad_bias,
                num_rows,
                grad_deep.stride(0),
                DENSE=num_dense,
                FEATURES=num_features,
                DIM=length - 1,
                SUMS=num_sums,
                TILE=BACKWARD_TILE,
                SUM_ROWS=max(1, SUM_TILE // block),
                DENSE_BLOCK=block,
                num_warps=_num_warps(BACKWARD_TILE),
            )
        if needs_dense:  # no model of hotrows does
            grad_dense = grad_deep[:, :num_dense].to(dense.dtype).contiguous()
            if weight is not None:
                grad_dense = grad_dense + (grad_wide.unsqueeze(1) * weight).to(dense.dtype)
        return (
            grad_dense,
            grad_embedded,
            grad_weight if needs_weight else None,
            grad_bias if needs_bias else None,
            None,
            None,
        )


def wide_deep_input(
    dense: Tensor,
    embedded: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    wide_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The deep input as `dtype` and the wide sum as `wide_dtype`. `embedded` is not empty."""
    output: tuple[Tensor, Tensor] = _WideDeepInput.apply(dense, embedded, weight, bias, dtype, wide_dtype)
    return output


def _num_warps(numbers: int) -> int:
    return min(max(1, numbers // NUMBERS_PER_WARP), _MAX_WARPS)
