"""Sum of the gradients of each unique row over a batch, in a fixed order."""

from torch import Tensor

from hotrows.ops.segment_sum import reference


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
    """For each unique row, the sum of scale[n] · grad[bag_of[n]] over its lookups n.

    The lookups of row u are order[starts[u]:starts[u + 1]]. The order of additions depends only on `order` and
    `starts`, so the same batch gives the same bits in any cache.

    Args:
        grad: float32 or bfloat16 [bags, D], contiguous. order: int32 [N]. starts: int32 [N + 1]. num: int32 [1], U.
        bag_of: int32 [N]; None where lookup n is bag n. scale: float32 [N] or None for 1.
        winner: int32 [bags, D] from max pooling: lookup n contributes to word d only if winner[bag_of[n], d] == n.
        first_row: int32 [N / LOOKUPS_PER_BLOCK], the unique row at the beginning of each block of `order`. None
            computes it here. The CPU does not need it.

    Returns:
        float32 [N, D], the first U rows filled. (On the CPU [U, D].)
    """
    if grad.is_cuda:
        from hotrows.ops.segment_sum import kernel

        return kernel.segment_sum(grad, order, starts, num, bag_of, scale, winner, first_row)
    return reference.segment_sum(grad, order, starts, num, bag_of, scale, winner)
