"""What one pass over a layer's gradient makes of it: the ReLU undone, the bias's gradient, and turned copies.

A sum over rows has two levels: each program writes the sum of its rows, a part, and a second kernel adds the parts in
their order, so that equal inputs give equal bits. All sums of a backward pass are cut into the same parts, side by side
in one matrix, so that the second kernel is launched once for all layers.

cuBLAS's fast kernels for TF32 want the numbers of which a product is the sum next to each other, in the gradient of a
weight those of a column. So a pass writes a large gradient a second time, turned, and turns the weight too.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# What may be tuned: benchmarks/micro/linear.py compares.
ROWS = 64  # of the tile that a program takes at a time
COLUMNS = 64
WARPS = 4
STAGES = 1  # of the pipeline over a program's tiles
# At most, about; where there are more tiles than that, a program takes several. Not just as many as there is room for:
# with rows being moved beside, some would have to wait for the others to end.
PROGRAMS = 4096
PART_ROWS = 128  # of the tile in which parts are added
PART_COLUMNS = 32

_APART = 32  # numbers; where in a row of parts a layer's sums begin is a multiple of it


class Parts(NamedTuple):
    """Sums over rows, still in parts.

    Args:
        values: [parts, numbers], float32; the sums of several layers side by side.
        starts: in which column each layer's begin.
        turns: how many tiles of `ROWS` rows each part is the sum of.
    """

    values: Tensor
    starts: list[int]
    turns: int


def make_parts(like: Tensor, num_rows: int, widths: list[int]) -> Parts:
    """Room for the parts of as many sums as there are widths; how they are cut follows from the shapes alone."""
    starts, total = [], 0
    for width in widths:
        starts.append(total)
        total += triton.cdiv(width, _APART) * _APART
    tiles = triton.cdiv(num_rows, ROWS)
    most = triton.cdiv(max(widths), COLUMNS)  # blocks of columns
    turns = triton.next_power_of_2(triton.cdiv(tiles * most, PROGRAMS))  # a kernel is compiled for each
    return Parts(like.new_empty(triton.cdiv(tiles, turns), total, dtype=torch.float32), starts, turns)


@triton.jit
def turn_tile(source, target, program, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """One tile of a matrix without gaps, written into the turned matrix."""
    BLOCKS: tl.constexpr = (WIDTH + TILE - 1) // TILE
    row = program // BLOCKS * TILE + tl.arange(0, TILE)
    column = program % BLOCKS * TILE + tl.arange(0, TILE)
    there = (row[:, None] < HEIGHT) & (column[None, :] < WIDTH)
    values = tl.load(source + row[:, None] * WIDTH + column[None, :], mask=there)
    tl.store(
        target + column[:, None] * HEIGHT + row[None, :],
        tl.trans(values),
        mask=(row[None, :] < HEIGHT) & (column[:, None] < WIDTH),
    )


@triton.jit(do_not_specialize=["num_rows", "num_programs", "part_stride", "start"])
def _mask_and_sum(
    grad,
    out,
    masked,
    turned,
    parts,
    weight,
    weight_turned,
    num_rows,
    num_programs,
    part_stride,
    start,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    GRAD_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TURNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradient before the ReLU as [B, WIDTH], zero from OUTPUTS on, and its sums over each program's rows.

    `turned` is the same gradient as [WIDTH, B]. Programs from `num_programs` on turn the weight, [WIDTH, INPUTS].
    """
    BLOCKS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    if program < num_programs:
        part = (program // BLOCKS).to(tl.int64)
        columns = program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS)
        column = columns[None, :]
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for turn in tl.range(TURNS, num_stages=STAGES):
            rows = (part * TURNS + turn) * ROWS + tl.arange(0, ROWS)
            row = rows[:, None]
            there = (row < num_rows) & (column < OUTPUTS)
            values = tl.load(grad + row * GRAD_STRIDE + column, mask=there, other=0.0).to(tl.float32)
            if out is not None:
                result = tl.load(out + row * OUT_STRIDE + column, mask=there, other=0.0).to(tl.float32)
                values = tl.where(result <= 0.0, 0.0, values)  # as torch does: the gradient of NaN is kept
            if masked is not None:
                tl.store(masked + row * WIDTH + column, values, mask=(row < num_rows) & (column < WIDTH))
            if turned is not None:
                target = turned + columns[:, None].to(tl.int64) * num_rows + rows[None, :]
                tl.store(target, tl.trans(values), mask=(rows[None, :] < num_rows) & (columns[:, None] < WIDTH))
            total += values
        tl.store(parts + part * part_stride + start + columns, tl.sum(total, 0), mask=columns < OUTPUTS)
    elif weight is not None:
        turn_tile(weight, weight_turned, program - num_programs, WIDTH, INPUTS, COLUMNS)


@triton.jit(do_not_specialize=["num_parts", "width"])
def _add_parts(parts, sums, num_parts, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sums of the columns of [num_parts, width]."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    start = 0
    while start < num_parts:
        part = (start + tl.arange(0, ROWS))[:, None].to(tl.int64)
        there = (part < num_parts) & (columns < width)[None, :]
        total += tl.load(parts + part * width + columns[None, :], mask=there, other=0.0)
        start += ROWS
    tl.store(sums + columns, tl.sum(total, 0), mask=columns < width)


class Gradient(NamedTuple):
    """The gradient of a layer's answer, for the products of the backward pass.

    Args:
        rows: [B, outputs], perhaps with padding.
        before_relu: whether it is that before the ReLU, padded and summed up.
        turned: [outputs, B], the same; None where nothing is won by it.
        weight: [inputs, outputs], the layer's turned weight; likewise.
    """

    rows: Tensor
    before_relu: bool = False
    turned: Tensor | None = None
    weight: Tensor | None = None


def mask_and_sum(
    grad: Tensor,
    out: Tensor | None,
    num_outputs: int,
    width: int,
    parts: Parts,
    place: int,
    turn: bool = False,
    weight: Tensor | None = None,
) -> Gradient:
    """The gradient where `out` (None: everywhere) is above zero, padded to `width` columns.

    Of `grad` and `out` the first `num_outputs` columns are meant. Their sums go to `parts`.

    Args:
        place: of the layer, among those whose parts they are.
        turn: whether the gradient is wanted turned, too.
        weight: what to turn besides, [width, inputs] without gaps.
    """
    num_rows = grad.shape[0]
    num_programs = parts.values.shape[0] * triton.cdiv(width, COLUMNS)
    same = out is None and width == num_outputs == grad.stride(0)
    masked = None if same else grad.new_empty(num_rows, width)
    turned = grad.new_empty(width, num_rows) if turn else None
    weight_turned = None if weight is None else torch.empty_like(weight.t(), memory_format=torch.contiguous_format)
    num_inputs = 1 if weight is None else weight.shape[1]
    num_tiles = 0 if weight is None else triton.cdiv(width, COLUMNS) * triton.cdiv(num_inputs, COLUMNS)
    _mask_and_sum[(num_programs + num_tiles,)](
        grad,
        out,
        masked,
        turned,
        parts.values,
        weight,
        weight_turned,
        num_rows,
        num_programs,
        parts.values.shape[1],
        parts.starts[place],
        OUTPUTS=num_outputs,
        WIDTH=width,
        INPUTS=num_inputs,
        GRAD_STRIDE=grad.stride(0),
        OUT_STRIDE=0 if out is None else out.stride(0),
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        TURNS=parts.turns,
        STAGES=STAGES,
        num_warps=WARPS,
    )
    return Gradient(grad if masked is None else masked, True, turned, weight_turned)


def add(parts: Parts) -> Tensor:
    """The sums, one after the other as in `parts`."""
    num_parts, width = parts.values.shape
    sums = parts.values.new_empty(width)
    _add_parts[(triton.cdiv(width, PART_COLUMNS),)](
        parts.values, sums, num_parts, width, ROWS=PART_ROWS, COLUMNS=PART_COLUMNS
    )
    return sums
