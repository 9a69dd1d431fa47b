"""Segment sum in Triton: the kernels of `ops.backward_update` with the sums stored to memory."""

import torch
from torch import Tensor

from hotrows.ops.backward_update.kernel import sum_rows


def segment_sum(
    grad: Tensor,
    order: Tensor,
    starts: Tensor,
    num: Tensor,
    bag_of: Tensor | None,
    scale: Tensor | None,
    winner: Tensor | None,
    first_row: Tensor | None = None,
) -> Tensor:
    sums = grad.new_empty(order.numel(), grad.shape[1], dtype=torch.float32)
    sum_rows("sum", sums, None, None, num, grad, order, starts, bag_of, scale, winner, first_row)
    return sums
