"""Remapping in plain PyTorch."""

import torch
from torch import Tensor

from hotrows.ops.rows import NO_ROW


def remap(rows: Tensor, num: Tensor, row_of: Tensor) -> Tensor:
    real = (rows >= 0) & (torch.arange(rows.numel(), device=rows.device) < num)
    return torch.where(real, row_of[rows.clamp(min=0)].long(), NO_ROW)
