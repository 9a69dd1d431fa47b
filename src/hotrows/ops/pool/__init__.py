"""Pooled gather: the sum, mean or maximum of the rows of each bag."""

from torch import Tensor

from hotrows.ops.pool import reference


def pool(
    cache: Tensor, slots: Tensor, offsets: Tensor | None, weights: Tensor | None, dim: int, mode: str
) -> tuple[Tensor, Tensor | None]:
    """Pool the first `dim` words of the records in `slots`, bag by bag, in the order of the lookups.

    Args:
        cache: float32 [≥ S, W]. slots: int32 [N]; a lookup with NO_SLOT is skipped.
        offsets: int32 [bags + 1], the last one N; None where every bag is one lookup.
        weights: float32 [N], with mode "sum" only.
        mode: "sum", "mean" (over the lookups that are not skipped) or "max".

    Returns:
        float32 [bags, dim], zero for a bag without rows. With "max" also int32 [bags, dim], the lookup that has the
        maximum (the first one of equal values), -1 for a bag without rows; otherwise None.
    """
    if cache.is_cuda:
        from hotrows.ops.pool import kernel

        return kernel.pool(cache, slots, offsets, weights, dim, mode)
    return reference.pool(cache, slots, offsets, weights, dim, mode)
