"""Rows by another numbering in Triton: the kernel reads the map in host memory itself, without the CPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import NO_ROW

_BLOCK = 256


@triton.jit(do_not_specialize=["length"])
def _renumber(rows, num, row_of, answer, length, BLOCK: tl.constexpr, READ_ONLY: tl.constexpr):
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + position, mask=position < tl.minimum(tl.load(num), length), other=READ_ONLY)
    found = tl.load(row_of + row, mask=row >= 0, other=READ_ONLY).to(tl.int64)
    tl.store(answer + position, found, mask=position < length)


def remap(rows: Tensor, num: Tensor, row_of: Tensor) -> Tensor:
    assert rows.is_contiguous()
    assert row_of.is_contiguous()
    answer = torch.empty_like(rows)
    if rows.numel() > 0:
        grid = (triton.cdiv(rows.numel(), _BLOCK),)
        _renumber[grid](rows, num, row_of, answer, rows.numel(), BLOCK=_BLOCK, READ_ONLY=NO_ROW)
    return answer
