"""Apply one optimizer step to rows in the cache, weights and state in one pass over their records."""

from torch import Tensor

from hotrows.ops.row_optimizer import reference
from hotrows.ops.row_optimizer.reference import numbers as numbers


def row_optimizer(
    rule: str, cache: Tensor, slots: Tensor, grads: Tensor, num: Tensor, dim: int, hyper: Tensor | tuple[float, ...]
) -> None:
    """Update the records in the first `num` slots, each with its own gradient.

    Args:
        rule: a name in `reference.RULES`, which says what `hyper` holds and where in the record the state is.
        cache: float32 [≥ S, W]. slots: int32 [K], each slot once, NO_SLOT to leave out.
        grads: float32 [≥ num, dim]. num: int32 [1].
        hyper: the optimizer's numbers for this step; or what `numbers` makes of them as float32 [K] on the device,
            which a captured graph reads anew each time. A rule without a kernel needs them on the host: with a tensor
            it waits for the device.
    """
    if cache.is_cuda:
        from hotrows.ops.row_optimizer import kernel

        kernel.row_optimizer(rule, cache, slots, grads, num, dim, hyper)
    else:
        reference.row_optimizer(rule, cache, slots, grads, num, dim, hyper)
