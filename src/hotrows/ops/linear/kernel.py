"""A linear layer in cuBLAS and Triton: the products of matrices by cuBLAS, what is passed over in memory by Triton.

A layer with one output has no product of matrices: its kernels are bound by the reading of x, like those around them.
Shapes: B rows, K inputs, N outputs. A sum over rows has two levels: each program writes the sum of its rows, a part,
and a second kernel adds the parts in their order, so that equal inputs give equal bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from hotrows.ops.linear.padding import aligned, whole_rows
from hotrows.ops.linear.room import with_room, with_room_beside_bias

# What may be tuned: benchmarks/micro/linear.py compares.
SUM_ROWS = 32  # of the tile that a program of the backward pass takes at a time
SUM_COLUMNS = 128
SUM_WARPS = 4
SUM_STAGES = 1  # of the pipeline over a program's tiles
# At most, about; where there are more tiles than that, a program takes several. Not just as many as there is room for:
# with rows being moved beside, some would have to wait for the others to end.
SUM_PROGRAMS = 4096
PART_ROWS = 128  # of the tile in which parts are added
PART_COLUMNS = 32
CUT_TILE = 1024  # numbers a program copies where it cuts off
RESIZE_TILE = 4096  # and where it pads
RESIZE_COLUMNS = 128
RESIZE_VECTOR = 2  # neighbours that a thread writes at once where it pads: of more, a warp's reads would lie far apart
ONE_TILE = 4096  # numbers of x that a program takes at a time where there is one output
ONE_COLUMNS = 256


@triton.jit(do_not_specialize=["num_rows", "num_given"])
def _resize(
    source,
    target,
    bias,
    target_bias,
    num_rows,
    num_given,
    GIVEN: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """From [num_given, GIVEN] to [num_rows, WIDTH], in the target's type: zero where there is nothing to copy.

    The bias has a number for each of the given rows, and changes its type only.
    """
    BLOCKS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    rows = (program // BLOCKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if bias is not None:
        there = (rows < num_given) & (program % BLOCKS == 0)
        tl.store(target_bias + rows, tl.load(bias + rows, mask=there, other=0.0), mask=there)
    row = rows[:, None]
    column = tl.max_contiguous((program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS))[None, :], [1, VECTOR])
    values = tl.load(source + row * GIVEN + column, mask=(row < num_given) & (column < GIVEN), other=0.0)
    tl.store(target + row * WIDTH + column, values, mask=(row < num_rows) & (column < WIDTH))


@triton.jit(do_not_specialize=["num_numbers"])
def _cut(source, target, num_numbers, GIVEN: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """From rows of GIVEN numbers to their first WIDTH ones, written as one long array: its pieces are aligned."""
    start = tl.program_id(0).to(tl.int64) * TILE
    first_row = start // WIDTH
    place = (start - first_row * WIDTH).to(tl.int32) + tl.arange(0, TILE)  # counted from that row's begin
    inside = start + tl.arange(0, TILE) < num_numbers
    values = tl.load(source + (first_row + place // WIDTH) * GIVEN + place % WIDTH, mask=inside, other=0.0)
    tl.store(target + start + tl.arange(0, TILE), values, mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _mask_and_sum(
    grad,
    out,
    masked,
    parts,
    num_rows,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TURNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradient before the ReLU as [B, WIDTH], zero from OUTPUTS on, and its sums over each program's rows."""
    BLOCKS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    part = (program // BLOCKS).to(tl.int64)
    columns = program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS)
    column = columns[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for turn in tl.range(TURNS, num_stages=STAGES):
        row = ((part * TURNS + turn) * ROWS + tl.arange(0, ROWS))[:, None]
        there = (row < num_rows) & (column < OUTPUTS)
        values = tl.load(grad + row * OUTPUTS + column, mask=there, other=0.0).to(tl.float32)
        if out is not None:
            result = tl.load(out + row * OUTPUTS + column, mask=there, other=0.0).to(tl.float32)
            values = tl.where(result <= 0.0, 0.0, values)  # as torch does: the gradient of NaN is kept
        if masked is not None:
            tl.store(masked + row * WIDTH + column, values, mask=(row < num_rows) & (column < WIDTH))
        total += values
    tl.store(parts + part * OUTPUTS + columns, tl.sum(total, 0), mask=columns < OUTPUTS)


@triton.jit(do_not_specialize=["num_parts"])
def _add_parts(
    parts,
    first,
    second,
    num_parts,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The sums of the columns of [num_parts, WIDTH]: FIRST of them go to `first`, what is left to `second`."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    start = 0
    while start < num_parts:
        part = (start + tl.arange(0, ROWS))[:, None].to(tl.int64)
        there = (part < num_parts) & (columns < WIDTH)[None, :]
        total += tl.load(parts + part * WIDTH + columns[None, :], mask=there, other=0.0)
        start += ROWS
    sums = tl.sum(total, 0)
    tl.store(first + columns, sums, mask=columns < FIRST)
    if second is not None:
        tl.store(second + (columns - FIRST), sums, mask=(columns >= FIRST) & (columns < WIDTH))


@triton.jit(do_not_specialize=["num_rows"])
def _one_forward(
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
    sums = tl.sum(total, 1) + tl.load(bias).to(tl.float32)
    if RELU:
        sums = tl.where(sums <= 0.0, 0.0, sums)
    if onto is not None:
        sums += tl.load(onto + rows, mask=rows < num_rows, other=0.0).to(tl.float32)
    tl.store(out + rows, sums, mask=rows < num_rows)


@triton.jit(do_not_specialize=["num_rows"])
def _one_backward(
    grad,
    out,
    x,
    weight,
    grad_x,
    parts,
    num_rows,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TURNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradient of x, and of each program's rows the sums of the weight's and, behind them, of the bias's."""
    BLOCKS: tl.constexpr = (INPUTS + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    part = (program // BLOCKS).to(tl.int64)
    columns = program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS)
    column = columns[None, :]
    weights = tl.load(weight + column, mask=column < INPUTS, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    total_bias = tl.zeros([ROWS], tl.float32)
    for turn in tl.range(TURNS, num_stages=STAGES):
        rows = (part * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        values = tl.load(grad + rows, mask=rows < num_rows, other=0.0).to(tl.float32)
        if out is not None:
            result = tl.load(out + rows, mask=rows < num_rows, other=0.0).to(tl.float32)
            values = tl.where(result <= 0.0, 0.0, values)
        row = rows[:, None]
        there = (row < num_rows) & (column < INPUTS)
        inputs = tl.load(x + row * INPUTS + column, mask=there, other=0.0).to(tl.float32)
        total += values[:, None] * inputs
        total_bias += values
        if grad_x is not None:
            tl.store(grad_x + row * INPUTS + column, values[:, None] * weights, mask=there)
    target = parts + part * (INPUTS + 1)
    tl.store(target + columns, tl.sum(total, 0), mask=columns < INPUTS)
    tl.store(target + INPUTS, tl.sum(total_bias, 0), mask=program % BLOCKS == 0)


class _Linear(torch.autograd.Function):
    """Keeps x and the weight as they were multiplied, and its answer where the ReLU is to be undone."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool, dtype: torch.dtype, padded: bool
    ) -> Tensor:
        num_outputs, num_inputs = ctx.shape = weight.shape
        ctx.dtypes = x.dtype, weight.dtype, bias.dtype
        width = aligned(num_inputs, dtype)
        whole = whole_rows(x, dtype) if padded else None
        ctx.padded = whole is not None
        x = resized(x, x.shape[0], width, dtype) if whole is None else whole
        # the bias too, else it would be added by a pass of its own
        weight, bias = _resized_layer(weight, bias, aligned(num_outputs, dtype), width, dtype)
        product = torch._addmm_activation if relu else torch.addmm
        with with_room_beside_bias(x, weight.t()):
            out: Tensor = product(bias, x, weight[:num_outputs].t())
        ctx.save_for_backward(x, weight, out if relu else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        x, weight, out = ctx.saved_tensors
        num_outputs, num_inputs = ctx.shape
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        if needs_bias or out is not None or weight.shape[0] != num_outputs:
            grad, grad_bias = mask_and_sum(grad.contiguous(), out, weight.shape[0], bias_dtype)
        with torch.autocast(grad.device.type, enabled=False):  # the types are those of the forward pass
            if needs_x:
                grad_x = _product(grad, weight, x_dtype)
                # rows that came padded go back padded
                grad_x = grad_x[:, :num_inputs] if ctx.padded else resized(grad_x, x.shape[0], num_inputs, x_dtype)
            if needs_weight:
                grad_weight = resized(_product(grad.t(), x, weight_dtype), num_outputs, num_inputs, weight_dtype)
        return grad_x, grad_weight, grad_bias if needs_bias else None, None, None, None


class _OneOutput(torch.autograd.Function):
    """Keeps its inputs, and its answer where the ReLU is to be undone."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool, dtype: torch.dtype, onto: Tensor | None
    ) -> Tensor:
        assert onto is None or not relu, "the ReLU could not be told from the answer"
        x, weight = x.contiguous(), weight.contiguous()
        num_rows, num_inputs = x.shape
        columns = min(triton.next_power_of_2(num_inputs), ONE_COLUMNS)
        rows = max(1, ONE_TILE // columns)
        if onto is not None:
            dtype, onto = torch.promote_types(dtype, onto.dtype), onto.contiguous()
        out = x.new_empty(num_rows, 1, dtype=dtype)
        _one_forward[(triton.cdiv(num_rows, rows),)](
            x, weight, bias, onto, out, num_rows, INPUTS=num_inputs, RELU=relu, ROWS=rows, COLUMNS=columns
        )
        ctx.bias_dtype, ctx.onto_dtype = bias.dtype, None if onto is None else onto.dtype
        ctx.save_for_backward(x, weight, out if relu else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None, Tensor | None]:
        x, weight, out = ctx.saved_tensors
        grad = grad.contiguous()
        grad_onto = grad.to(ctx.onto_dtype) if ctx.needs_input_grad[5] else None
        num_rows, num_inputs = x.shape
        columns = min(triton.next_power_of_2(num_inputs), ONE_COLUMNS)
        rows = max(1, ONE_TILE // columns)
        blocks = triton.cdiv(num_inputs, columns)
        num_parts, turns = _parts(num_rows, rows, blocks)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        parts = x.new_empty(num_parts, num_inputs + 1, dtype=torch.float32)
        _one_backward[(num_parts * blocks,)](
            grad,
            out,
            x,
            weight,
            grad_x,
            parts,
            num_rows,
            INPUTS=num_inputs,
            ROWS=rows,
            COLUMNS=columns,
            TURNS=turns,
            STAGES=SUM_STAGES,
        )
        grad_weight, grad_bias = torch.empty_like(weight), x.new_empty(1, dtype=ctx.bias_dtype)
        _add(parts, grad_weight, grad_bias)
        return grad_x, grad_weight, grad_bias, None, None, grad_onto


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    relu: bool,
    dtype: torch.dtype,
    padded: bool = False,
    onto: Tensor | None = None,
) -> Tensor:
    """x is [B, K], and nothing is empty; `onto` is [B, 1], for one output without a ReLU."""
    out: Tensor
    if weight.shape[0] == 1:
        out = _OneOutput.apply(x, weight, bias, relu, dtype, onto)
    else:
        assert onto is None
        out = _Linear.apply(x, weight, bias, relu, dtype, padded)
    return out


def resized(source: Tensor, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """A matrix cut off, or padded with zeros, in one pass with the change of its type; itself if nothing changes."""
    source = source.contiguous()
    if source.shape == (num_rows, width):
        return source.to(dtype)
    return _copied(source, None, num_rows, width, dtype)[0]


def _resized_layer(
    weight: Tensor, bias: Tensor, num_rows: int, width: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """A weight so resized, and its bias in the same type: in one pass if both change."""
    if bias.dtype == dtype or (weight.dtype == dtype and weight.shape == (num_rows, width)):
        return resized(weight, num_rows, width, dtype), bias.to(dtype).contiguous()
    weight, changed = _copied(weight.contiguous(), bias.contiguous(), num_rows, width, dtype)
    assert changed is not None
    return weight, changed


def _copied(
    source: Tensor, bias: Tensor | None, num_rows: int, width: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    target = source.new_empty(num_rows, width, dtype=dtype)
    if bias is None and num_rows <= source.shape[0] and width < source.shape[1]:
        _cut[(triton.cdiv(target.numel(), CUT_TILE),)](
            source, target, target.numel(), GIVEN=source.shape[1], WIDTH=width, TILE=CUT_TILE
        )
        return target, None
    target_bias = None if bias is None else bias.new_empty(bias.shape, dtype=dtype)
    columns = min(triton.next_power_of_2(width), RESIZE_COLUMNS)
    rows = max(1, RESIZE_TILE // columns)
    _resize[(triton.cdiv(num_rows, rows) * triton.cdiv(width, columns),)](
        source,
        target,
        bias,
        target_bias,
        num_rows,
        source.shape[0],
        GIVEN=source.shape[1],
        WIDTH=width,
        ROWS=rows,
        COLUMNS=columns,
        VECTOR=8 if source.shape[1] == width else RESIZE_VECTOR,
    )
    return target, target_bias


def mask_and_sum(grad: Tensor, out: Tensor | None, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The gradient where `out` (None: everywhere) is above zero, padded to `width` columns, and its column sums."""
    num_rows, num_outputs = grad.shape
    columns = min(triton.next_power_of_2(width), SUM_COLUMNS)
    rows = SUM_ROWS * SUM_COLUMNS // columns
    blocks = triton.cdiv(width, columns)
    num_parts, turns = _parts(num_rows, rows, blocks)
    masked = None if out is None and width == num_outputs else grad.new_empty(num_rows, width)
    parts = grad.new_empty(num_parts, num_outputs, dtype=torch.float32)
    _mask_and_sum[(num_parts * blocks,)](
        grad,
        out,
        masked,
        parts,
        num_rows,
        OUTPUTS=num_outputs,
        WIDTH=width,
        ROWS=rows,
        COLUMNS=columns,
        TURNS=turns,
        STAGES=SUM_STAGES,
        num_warps=SUM_WARPS,
    )
    sums = grad.new_empty(num_outputs, dtype=dtype)
    _add(parts, sums, None)
    return grad if masked is None else masked, sums


def _add(parts: Tensor, first: Tensor, second: Tensor | None) -> None:
    num_parts, width = parts.shape
    _add_parts[(triton.cdiv(width, PART_COLUMNS),)](
        parts,
        first,
        second,
        num_parts,
        WIDTH=width,
        FIRST=first.numel(),
        ROWS=PART_ROWS,
        COLUMNS=PART_COLUMNS,
    )


def _parts(num_rows: int, rows: int, blocks: int) -> tuple[int, int]:
    """How many parts there are, and how many tiles of `rows` rows each is the sum of; from the shapes alone."""
    tiles = triton.cdiv(num_rows, rows)
    turns = triton.next_power_of_2(triton.cdiv(tiles * blocks, SUM_PROGRAMS))  # a kernel is compiled for each
    return triton.cdiv(tiles, turns), turns


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Of two matrices, written as float32 where that is asked for: rounded once, and no pass more."""
    with with_room(left, right):
        if left.is_cuda and dtype == torch.float32 and left.dtype != dtype:
            return torch.mm(left, right, out_dtype=dtype)
        return torch.mm(left, right)
