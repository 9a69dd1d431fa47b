"""Gradient add-up in Triton: the sums of `ops.update_rows`, stored instead of used."""

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
    answer = grad.new_empty(order.numel(), grad.shape[1], dtype=torch.float32)
    sum_rows("sum", answer, None, None, num, grad, order, starts, bag_of, scale, winner, first_row)
    return answer
