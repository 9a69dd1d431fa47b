"""Matrices cut off, or padded with zeros to rows of a length that the fast kernels of cuBLAS need."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Tuning parameters; benchmarks/micro/linear.py compares values.
CUT_TILE = 1024  # numbers that a program copies if it cuts off
RESIZE_TILE = 4096  # numbers that a program copies if it pads
RESIZE_COLUMNS = 128
RESIZE_VECTOR = 2  # adjacent numbers that a thread writes at once if it pads; with more, a warp's reads are far apart


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
    """Copy [num_given, GIVEN] to [num_rows, WIDTH] in the target's type, with zeros where there is nothing to copy.

    The bias has a number for each given row, and only its type changes.
    """
    BLOCKS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    rows = (program // BLOCKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if bias is not None:
        mask = (rows < num_given) & (program % BLOCKS == 0)
        tl.store(target_bias + rows, tl.load(bias + rows, mask=mask, other=0.0), mask=mask)
    row = rows[:, None]
    column = tl.max_contiguous((program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS))[None, :], [1, VECTOR])
    values = tl.load(source + row * GIVEN + column, mask=(row < num_given) & (column < GIVEN), other=0.0)
    tl.store(target + row * WIDTH + column, values, mask=(row < num_rows) & (column < WIDTH))


@triton.jit(do_not_specialize=["num_numbers"])
def _cut(source, target, num_numbers, GIVEN: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Copy the first WIDTH of GIVEN numbers of each row. The target is written as one long array in aligned tiles."""
    start = tl.program_id(0).to(tl.int64) * TILE
    first_row = start // WIDTH
    position = (start - first_row * WIDTH).to(tl.int32) + tl.arange(0, TILE)  # counted from the begin of that row
    inside = start + tl.arange(0, TILE) < num_numbers
    values = tl.load(source + (first_row + position // WIDTH) * GIVEN + position % WIDTH, mask=inside, other=0.0)
    tl.store(target + start + tl.arange(0, TILE), values, mask=inside)


def resized(source: Tensor, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """A matrix cut off or padded with zeros, and converted, in one pass. The same matrix if nothing changes."""
    source = source.contiguous()
    if source.shape == (num_rows, width):
        return source.to(dtype)
    return _copy(source, None, num_rows, width, dtype)[0]


def resized_layer(weight: Tensor, bias: Tensor, num_rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A weight resized, and its bias in the same type; in one pass if both change."""
    if bias.dtype == dtype or (weight.dtype == dtype and weight.shape == (num_rows, width)):
        return resized(weight, num_rows, width, dtype), bias.to(dtype).contiguous()
    weight, changed = _copy(weight.contiguous(), bias.contiguous(), num_rows, width, dtype)
    assert changed is not None
    return weight, changed


def _copy(
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
