"""Update of a batch's rows in plain PyTorch: the two operations that it combines, one after the other."""

from torch import Tensor

from hotrows.ops.row_optimizer.reference import row_optimizer
from hotrows.ops.segment_sum.reference import segment_sum


def backward_update(
    rule: str,
    cache: Tensor,
    row_slots: Tensor,
    num: Tensor,
    grad: Tensor,
    order: Tensor,
    starts: Tensor,
    bag_of: Tensor | None,
    scale: Tensor | None,
    winner: Tensor | None,
    dim: int,
    hyper: Tensor | tuple[float, ...],
) -> None:
    row_optimizer(rule, cache, row_slots, segment_sum(grad, order, starts, num, bag_of, scale, winner), num, dim, hyper)
