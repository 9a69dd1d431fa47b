"""Pooled gather: the rows of each bag, summed, averaged or maximized."""

from torch import Tensor

from hotrows.ops.pool import reference


def pool(
    cache: Tensor, slots: Tensor, offsets: Tensor | None, weights: Tensor | None, dim: int, mode: str
) -> tuple[Tensor, Tensor | None]:
    """Pool the first `dim` words of the records in `slots`, bag by bag, in the order of the lookups.

    Args:
        cache: float32 [≥ S, W]. slots: int32 [N]; a lookup with NO_SLOT takes no part.
        offsets: int32 [bags + 1], the last one N; None where every bag is one lookup.
        weights: float32 [N], with mode "sum" only.
        mode: "sum", "mean" (over the lookups that take part) or "max".

    Returns:
        float32 [bags, dim], zero for a bag without rows; with "max" also which lookup won, int32 [bags, dim], -1 for
        none (of equal values the first wins), otherwise None.
    """
    if cache.is_cuda:
        from hotrows.ops.pool import kernel

        return kernel.pool(cache, slots, offsets, weights, dim, mode)
    return reference.pool(cache, slots, offsets, weights, dim, mode)
