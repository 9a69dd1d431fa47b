"""One pass over a layer's gradient: the gradient before the ReLU, the bias's gradient, and transposed copies.

A sum over rows has two levels. Each program writes the sum of its rows, a part, and a second kernel adds the parts in
their order, so that equal inputs give equal bits. All sums of a backward pass are divided into the same parts, next to
each other in one matrix, so that the second kernel is launched once for all layers.

cuBLAS's fast kernels for TF32 need the numbers that are summed up by a product to be adjacent in memory. For the
gradient of a weight these are the numbers of a column. So the pass over a large gradient also writes it transposed, and
transposes the weight.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Tuning parameters; benchmarks/micro/linear.py compares values.
ROWS = 64  # of the tile that a program processes at a time
COLUMNS = 64
WARPS = 4
STAGES = 1  # of the pipeline over a program's tiles
# Approximate upper bound. If there are more tiles, a program processes several. It is far above the number of programs
# that run at once: otherwise, while rows are moved beside them, some programs would wait for the others to end.
PROGRAMS = 4096
PART_ROWS = 128  # of the tile in which parts are added
PART_COLUMNS = 32

_ALIGNMENT = 32  # numbers; a layer's sums begin at a multiple of this in a row of parts


class Parts(NamedTuple):
    """Sums over rows, divided into parts.

    Args:
        values: [parts, numbers], float32; the sums of several layers next to each other.
        starts: the first column of each layer's sums.
        num_tiles: how many tiles of `ROWS` rows are summed up in each part.
    """

    values: Tensor
    starts: list[int]
    num_tiles: int


def make_parts(like: Tensor, num_rows: int, widths: list[int]) -> Parts:
    """Memory for the parts of the sums of each layer. How they are divided depends on the shapes alone."""
    starts, total = [], 0
    for width in widths:
        starts.append(total)
        total += triton.cdiv(width, _ALIGNMENT) * _ALIGNMENT
    tiles = triton.cdiv(num_rows, ROWS)
    max_blocks = triton.cdiv(max(widths), COLUMNS)  # of columns
    # A power of 2, because a kernel is compiled for each value.
    num_tiles = triton.next_power_of_2(triton.cdiv(tiles * max_blocks, PROGRAMS))
    return Parts(like.new_empty(triton.cdiv(tiles, num_tiles), total, dtype=torch.float32), starts, num_tiles)


@triton.jit
def transpose_tile(source, target, program, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Write one tile of a contiguous matrix to the transposed matrix."""
    BLOCKS: tl.constexpr = (WIDTH + TILE - 1) // TILE
    row = program // BLOCKS * TILE + tl.arange(0, TILE)
    column = program % BLOCKS * TILE + tl.arange(0, TILE)
    mask = (row[:, None] < HEIGHT) & (column[None, :] < WIDTH)
    values = tl.load(source + row[:, None] * WIDTH + column[None, :], mask=mask)
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
    transposed,
    parts,
    weight,
    weight_transposed,
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
    TILES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradient before the ReLU as [B, WIDTH], zero from OUTPUTS on, and its sums over each program's rows.

    `transposed` is the same gradient as [WIDTH, B]. Programs from `num_programs` on transpose the weight,
    [WIDTH, INPUTS].
    """
    BLOCKS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    if program < num_programs:
        part = (program // BLOCKS).to(tl.int64)
        columns = program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS)
        column = columns[None, :]
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for tile in tl.range(TILES, num_stages=STAGES):
            rows = (part * TILES + tile) * ROWS + tl.arange(0, ROWS)
            row = rows[:, None]
            mask = (row < num_rows) & (column < OUTPUTS)
            values = tl.load(grad + row * GRAD_STRIDE + column, mask=mask, other=0.0).to(tl.float32)
            if out is not None:
                result = tl.load(out + row * OUT_STRIDE + column, mask=mask, other=0.0).to(tl.float32)
                values = tl.where(result <= 0.0, 0.0, values)  # as PyTorch: where the output is NaN, the gradient stays
            if masked is not None:
                tl.store(masked + row * WIDTH + column, values, mask=(row < num_rows) & (column < WIDTH))
            if transposed is not None:
                target = transposed + columns[:, None].to(tl.int64) * num_rows + rows[None, :]
                tl.store(target, tl.trans(values), mask=(rows[None, :] < num_rows) & (columns[:, None] < WIDTH))
            total += values
        tl.store(parts + part * part_stride + start + columns, tl.sum(total, 0), mask=columns < OUTPUTS)
    elif weight is not None:
        transpose_tile(weight, weight_transposed, program - num_programs, WIDTH, INPUTS, COLUMNS)


@triton.jit(do_not_specialize=["num_parts", "width"])
def _add_parts(parts, sums, num_parts, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sums of the columns of [num_parts, width]."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    start = 0
    while start < num_parts:
        part = (start + tl.arange(0, ROWS))[:, None].to(tl.int64)
        mask = (part < num_parts) & (columns < width)[None, :]
        total += tl.load(parts + part * width + columns[None, :], mask=mask, other=0.0)
        start += ROWS
    tl.store(sums + columns, tl.sum(total, 0), mask=columns < width)


class Gradient(NamedTuple):
    """The gradient of a layer's output, for the products of the backward pass.

    Args:
        rows: [B, outputs], perhaps with padding.
        before_relu: True if it is the gradient before the ReLU, padded and summed up.
        transposed: [outputs, B], the same gradient; None if that would save no time.
        weight: [inputs, outputs], the layer's transposed weight; likewise.
    """

    rows: Tensor
    before_relu: bool = False
    transposed: Tensor | None = None
    weight: Tensor | None = None


def mask_and_sum(
    grad: Tensor,
    out: Tensor | None,
    num_outputs: int,
    width: int,
    parts: Parts,
    number: int,
    transpose: bool = False,
    weight: Tensor | None = None,
) -> Gradient:
    """The gradient where `out` (None: everywhere) is above zero, padded to `width` columns.

    Only the first `num_outputs` columns of `grad` and `out` are read. Their sums go to `parts`.

    Args:
        number: of the layer, among those that share the parts.
        transpose: make the transposed gradient too.
        weight: also transpose this matrix, [width, inputs], contiguous.
    """
    num_rows = grad.shape[0]
    num_programs = parts.values.shape[0] * triton.cdiv(width, COLUMNS)
    same = out is None and width == num_outputs == grad.stride(0)
    masked = None if same else grad.new_empty(num_rows, width)
    transposed = grad.new_empty(width, num_rows) if transpose else None
    weight_transposed = None if weight is None else torch.empty_like(weight.t(), memory_format=torch.contiguous_format)
    num_inputs = 1 if weight is None else weight.shape[1]
    num_tiles = 0 if weight is None else triton.cdiv(width, COLUMNS) * triton.cdiv(num_inputs, COLUMNS)
    _mask_and_sum[(num_programs + num_tiles,)](
        grad,
        out,
        masked,
        transposed,
        parts.values,
        weight,
        weight_transposed,
        num_rows,
        num_programs,
        parts.values.shape[1],
        parts.starts[number],
        OUTPUTS=num_outputs,
        WIDTH=width,
        INPUTS=num_inputs,
        GRAD_STRIDE=grad.stride(0),
        OUT_STRIDE=0 if out is None else out.stride(0),
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        TILES=parts.num_tiles,
        STAGES=STAGES,
        num_warps=WARPS,
    )
    return Gradient(grad if masked is None else masked, True, transposed, weight_transposed)


def add(parts: Parts) -> Tensor:
    """Add up the parts of every sum. The sums have the order of the columns."""
    num_parts, width = parts.values.shape
    sums = parts.values.new_empty(width)
    _add_parts[(triton.cdiv(width, PART_COLUMNS),)](
        parts.values, sums, num_parts, width, ROWS=PART_ROWS, COLUMNS=PART_COLUMNS
    )
    return sums
