"""Matrices cut off or padded with zeros, as long as the fast kernels of cuBLAS want their rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# What may be tuned: benchmarks/micro/linear.py compares.
CUT_TILE = 1024  # numbers a program copies where it cuts off
RESIZE_TILE = 4096  # and where it pads
RESIZE_COLUMNS = 128
RESIZE_VECTOR = 2  # neighbours that a thread writes at once where it pads: of more, a warp's reads would lie far apart


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


def resized(source: Tensor, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """A matrix cut off, or padded with zeros, in one pass with the change of its type; itself if nothing changes."""
    source = source.contiguous()
    if source.shape == (num_rows, width):
        return source.to(dtype)
    return _copied(source, None, num_rows, width, dtype)[0]


def resized_layer(weight: Tensor, bias: Tensor, num_rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
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
