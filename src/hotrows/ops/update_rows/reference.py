"""Update of a batch's rows in plain PyTorch: the two operations that it is made of."""

from torch import Tensor

from hotrows.ops.add_up.reference import add_up
from hotrows.ops.row_update.reference import row_update


def update_rows(
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
    row_update(rule, cache, row_slots, add_up(grad, order, starts, num, bag_of, scale, winner), num, dim, hyper)
