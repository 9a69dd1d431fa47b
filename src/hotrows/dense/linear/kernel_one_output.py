"""A layer with one output needs no product of matrices: the time of its kernels is that of reading x.

Its backward pass reads x, the output of the layer before. So it also makes the gradient before that layer's ReLU, and
sums up that layer's bias gradient.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.dense.linear import kernel_sums as sums
from hotrows.dense.linear.kernel_sums import Gradient, Parts, transpose_tile

# Tuning parameters; benchmarks/micro/linear.py compares values.
FORWARD_TILE = 4096  # numbers of x that a program processes at a time
FORWARD_COLUMNS = 256


@triton.jit(do_not_specialize=["num_rows"])
def _forward(
    x,
    weight,
    bias,
    onto,
    out,
    num_rows,
    INPUTS: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = rows[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in tl.range(0, INPUTS, COLUMNS):
        column = (start + tl.arange(0, COLUMNS))[None, :]
        weights = tl.load(weight + column, mask=column < INPUTS, other=0.0).to(tl.float32)
        values = tl.load(x + row * INPUTS + column, mask=(row < num_rows) & (column < INPUTS), other=0.0)
        total += values.to(tl.float32) * weights
    result = tl.sum(total, 1) + tl.load(bias).to(tl.float32)
    if RELU:
        result = tl.where(result <= 0.0, 0.0, result)
    if onto is not None:
        result += tl.load(onto + rows, mask=rows < num_rows, other=0.0).to(tl.float32)
    tl.store(out + rows, result, mask=rows < num_rows)


@triton.jit(do_not_specialize=["num_rows", "num_programs", "part_stride", "start", "start_before"])
def _backward(
    grad,
    out,
    x,
    weight,
    grad_x,
    parts,
    weight_before,
    weight_transposed,
    num_rows,
    num_programs,
    part_stride,
    start,
    start_before,
    INPUTS: tl.constexpr,
    BIAS_AT: tl.constexpr,
    BEFORE: tl.constexpr,
    INPUTS_BEFORE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradient of x, and the sums over each program's rows: the weight's gradient, and behind it the bias's.

    With BEFORE, x is the output of a ReLU. Then the gradient is that before the ReLU, and it is summed up too. Programs
    from `num_programs` on transpose the weight of the layer before, [INPUTS, INPUTS_BEFORE].
    """
    BLOCKS: tl.constexpr = (INPUTS + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    if program < num_programs:
        part = (program // BLOCKS).to(tl.int64)
        columns = program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS)
        column = columns[None, :]
        weights = tl.load(weight + column, mask=column < INPUTS, other=0.0).to(tl.float32)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        total_x = tl.zeros([ROWS, COLUMNS], tl.float32)
        total_bias = tl.zeros([ROWS], tl.float32)
        for tile in tl.range(TILES, num_stages=STAGES):
            rows = (part * TILES + tile) * ROWS + tl.arange(0, ROWS)
            values = tl.load(grad + rows, mask=rows < num_rows, other=0.0).to(tl.float32)
            if out is not None:
                result = tl.load(out + rows, mask=rows < num_rows, other=0.0).to(tl.float32)
                values = tl.where(result <= 0.0, 0.0, values)
            row = rows[:, None]
            mask = (row < num_rows) & (column < INPUTS)
            inputs = tl.load(x + row * INPUTS + column, mask=mask, other=0.0).to(tl.float32)
            total += values[:, None] * inputs
            total_bias += values
            if grad_x is not None:
                product = (values[:, None] * weights).to(grad_x.dtype.element_ty)
                if BEFORE:
                    product = tl.where(inputs <= 0.0, 0.0, product)
                    total_x += product.to(tl.float32)
                tl.store(grad_x + row * INPUTS + column, product, mask=mask)
        target = parts + part * part_stride
        tl.store(target + start + columns, tl.sum(total, 0), mask=columns < INPUTS)
        tl.store(target + start + BIAS_AT, tl.sum(total_bias, 0), mask=program % BLOCKS == 0)
        if BEFORE:
            tl.store(target + start_before + columns, tl.sum(total_x, 0), mask=columns < INPUTS)
    elif weight_before is not None:
        transpose_tile(weight_before, weight_transposed, program - num_programs, INPUTS, INPUTS_BEFORE, COLUMNS)


def num_sums(num_inputs: int) -> int:
    """How many sums there are: the weight's gradient and, at the next aligned position, the bias's."""
    return triton.cdiv(num_inputs, 4) * 4 + 1


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, relu: bool, dtype: torch.dtype, onto: Tensor | None = None
) -> Tensor:
    """The output, [B, 1], with `onto` added. x and the weight are contiguous."""
    assert onto is None or not relu, "the backward pass could not tell from the output where the ReLU was zero"
    num_rows, num_inputs = x.shape
    columns = min(triton.next_power_of_2(num_inputs), FORWARD_COLUMNS)
    rows = max(1, FORWARD_TILE // columns)
    if onto is not None:
        dtype, onto = torch.promote_types(dtype, onto.dtype), onto.contiguous()
    out = x.new_empty(num_rows, 1, dtype=dtype)
    _forward[(triton.cdiv(num_rows, rows),)](
        x, weight, bias, onto, out, num_rows, INPUTS=num_inputs, RELU=relu, ROWS=rows, COLUMNS=columns
    )
    return out


def backward(
    grad: Tensor,
    out: Tensor | None,
    x: Tensor,
    weight: Tensor,
    needs_x: bool,
    parts: Parts,
    number: int,
    before: int | None = None,
    weight_before: Tensor | None = None,
) -> Gradient | None:
    """The gradient of x, None if it is not needed.

    The gradients of the weight and the bias go to `parts`.

    Args:
        out: the output of the forward pass, if it has a ReLU.
        number: of the layer, among those that share the parts.
        before: the number of the layer whose ReLU made x. Then the gradient is that before this ReLU, and its sums go
            to `parts` too.
        weight_before: also transpose this matrix, [inputs, inputs of the layer before].
    """
    num_rows, num_inputs = x.shape
    num_programs = parts.values.shape[0] * triton.cdiv(num_inputs, sums.COLUMNS)
    grad_x = torch.empty_like(x) if needs_x else None
    weight_transposed, inputs_before, num_tiles = None, 1, 0
    if weight_before is not None:
        inputs_before = weight_before.shape[1]
        weight_transposed = weight_before.new_empty(inputs_before, num_inputs)
        num_tiles = triton.cdiv(num_inputs, sums.COLUMNS) * triton.cdiv(inputs_before, sums.COLUMNS)
    _backward[(num_programs + num_tiles,)](
        grad,
        out,
        x,
        weight,
        grad_x,
        parts.values,
        weight_before,
        weight_transposed,
        num_rows,
        num_programs,
        parts.values.shape[1],
        parts.starts[number],
        0 if before is None else parts.starts[before],
        INPUTS=num_inputs,
        BIAS_AT=num_sums(num_inputs) - 1,
        BEFORE=before is not None,
        INPUTS_BEFORE=inputs_before,
        ROWS=sums.ROWS,
        COLUMNS=sums.COLUMNS,
        TILES=parts.num_tiles,
        STAGES=sums.STAGES,
        num_warps=sums.WARPS,
    )
    return None if grad_x is None else Gradient(grad_x, before is not None, weight=weight_transposed)
