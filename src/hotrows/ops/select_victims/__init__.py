"""Choose victims: the slots of lowest priority among those that may be evicted."""

from torch import Tensor

from hotrows.ops.select_victims import reference

# Priorities of the policy that looks ahead: how often a row was seen, up to MAX_SEEN, or NEEDED less the number of the
# batch that needs it next, which is at most MAX_DISTANCE batches away.
NEEDED = 2**31 - 1
MAX_SEEN = 190
MAX_DISTANCE = 63


def select_victims(
    priority: Tensor, last_used: Tensor, pinned: Tensor, oldest: int, num_wanted: Tensor, length: int
) -> Tensor:
    """The `num_wanted` evictable slots of lowest priority, or all evictable slots if these are fewer.

    A slot is evictable if it is not pinned and was last used before plan `oldest`, the first one in flight. Of slots
    with equal priorities, the lower slot is evicted first.

    Args:
        priority, last_used: int32 [S].
        pinned: bool [S].
        num_wanted: int32 [1].
        length: of the result, at least `num_wanted`.

    Returns:
        int32 [length], ascending; NO_SLOT behind the last one.
    """
    if priority.is_cuda:
        from hotrows.ops.select_victims import kernel

        return kernel.select_victims(priority, last_used, pinned, oldest, num_wanted, length)
    return reference.select_victims(priority, last_used, pinned, oldest, num_wanted, length)
