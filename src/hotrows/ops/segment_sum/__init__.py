"""Add up the gradients of each distinct row over a batch, in a fixed order."""

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
    """For each distinct row the sum over its lookups n of scale[n] · grad[bag_of[n]].

    The lookups of row u are order[starts[u]:starts[u + 1]]. The order of additions depends on `order` and `starts`
    alone, so the same batch gives the same bits in any cache.

    Args:
        grad: float32 or bfloat16 [bags, D], contiguous. order: int32 [N]. starts: int32 [N + 1]. num: int32 [1], U.
        bag_of: int32 [N]; None where lookup n is bag n. scale: float32 [N] or None for 1.
        winner: int32 [bags, D] from max pooling: only where winner[bag_of[n], d] == n does lookup n take part.
        first_row: int32 [N / LOOKUPS_PER_BLOCK], the distinct row at the beginning of each block of `order`; found
            here where it is None. The CPU needs none.

    Returns:
        float32 [N, D], the first U rows filled. (On the CPU [U, D].)
    """
    if grad.is_cuda:
        from hotrows.ops.segment_sum import kernel

        return kernel.segment_sum(grad, order, starts, num, bag_of, scale, winner, first_row)
    return reference.segment_sum(grad, order, starts, num, bag_of, scale, winner)
