"""One optimizer step on rows in the cache: their weights and state are updated in one pass over their records."""

from torch import Tensor

from hotrows.ops.row_optimizer import reference
from hotrows.ops.row_optimizer.reference import coefficients as coefficients


def row_optimizer(
    rule: str, cache: Tensor, slots: Tensor, grads: Tensor, num: Tensor, dim: int, hyper: Tensor | tuple[float, ...]
) -> None:
    """Update the records in the first `num` of the slots, each with its own gradient.

    Args:
        rule: a name in `reference.RULES`; the rule there says what `hyper` holds and where in the record its state is.
        cache: float32 [≥ S, W]. slots: int32 [K], each slot once, NO_SLOT to skip a row.
        grads: float32 [≥ num, dim]. num: int32 [1].
        hyper: the optimizer's hyperparameters at this step; or, for a captured graph, the result of `coefficients` as a
            float32 tensor on the device, which every replay reads again. A rule without a kernel needs them on the
            host, so with a tensor it waits for the device.
    """
    if cache.is_cuda:
        from hotrows.ops.row_optimizer import kernel

        kernel.row_optimizer(rule, cache, slots, grads, num, dim, hyper)
    else:
        reference.row_optimizer(rule, cache, slots, grads, num, dim, hyper)
