"""Remapping in Triton: the kernel reads the map directly from host memory (zero copy)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import NO_ROW

_BLOCK = 256


@triton.jit(do_not_specialize=["length"])
def _remap(rows, num, row_of, remapped, length, BLOCK: tl.constexpr, MISSING: tl.constexpr):
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + position, mask=position < tl.minimum(tl.load(num), length), other=MISSING)
    found = tl.load(row_of + row, mask=row >= 0, other=MISSING).to(tl.int64)
    tl.store(remapped + position, found, mask=position < length)


def remap(rows: Tensor, num: Tensor, row_of: Tensor) -> Tensor:
    assert rows.is_contiguous()
    assert row_of.is_contiguous()
    remapped = torch.empty_like(rows)
    if rows.numel() > 0:
        grid = (triton.cdiv(rows.numel(), _BLOCK),)
        _remap[grid](rows, num, row_of, remapped, rows.numel(), BLOCK=_BLOCK, MISSING=NO_ROW)
    return remapped
