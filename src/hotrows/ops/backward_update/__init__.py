"""One optimizer step on the rows of a batch, from the gradients of its lookups."""

from torch import Tensor

from hotrows.ops.backward_update import reference
from hotrows.ops.row_optimizer import coefficients as coefficients


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
    first_row: Tensor | None = None,
) -> None:
    """`segment_sum` and then `row_optimizer`, to the same bits, but most of the sums are never written to memory.

    Args:
        rule: a name in `row_optimizer.reference.RULES`.
        cache: float32 [≥ S, W]. row_slots: int32 [≥ U], each slot once, NO_SLOT to skip a row. num: int32 [1], U.
        grad: float32 or bfloat16 [bags, dim], contiguous. order: int32 [N]. starts: int32 [N + 1].
        bag_of, scale, winner: as for `segment_sum`.
        hyper: as for `row_optimizer`; a captured graph needs a tensor on the device that holds `coefficients(rule, …)`.
        first_row: int32 [N / LOOKUPS_PER_BLOCK], the unique row at the beginning of each block of `order`. None
            computes it here. The CPU does not need it.
    """
    if cache.is_cuda:
        from hotrows.ops.backward_update import kernel

        kernel.backward_update(
            rule, cache, row_slots, num, grad, order, starts, bag_of, scale, winner, dim, hyper, first_row
        )
    else:
        reference.backward_update(rule, cache, row_slots, num, grad, order, starts, bag_of, scale, winner, dim, hyper)
