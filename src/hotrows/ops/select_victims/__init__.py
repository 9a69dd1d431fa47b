"""Choose the slots to give up: the lowest priorities among those that may go."""

from torch import Tensor

from hotrows.ops.select_victims import reference

# Priorities of the policy that looks ahead: how often a row was seen, up to MOST_SEEN, or NEEDED less the number of the
# batch that needs it next, which is at most FURTHEST batches away.
NEEDED = 2**31 - 1
MOST_SEEN = 190
FURTHEST = 63


def select_victims(priority: Tensor, last_used: Tensor, pinned: Tensor, oldest: int, num_wanted: Tensor, most: int) -> Tensor:
    """The `num_wanted` evictable slots of lowest priority, or all evictable ones where they are fewer.

    A slot is evictable when it is not pinned and was last used before batch `oldest`, the first one in flight. Of
    equal priorities the lower slot goes first.

    Args:
        priority, last_used: int32 [S]. pinned: bool [S]. num_wanted: int32 [1].
        most: length of the answer, at least `num_wanted`.

    Returns:
        int32 [most], ascending; NO_SLOT after the last.
    """
    if priority.is_cuda:
        from hotrows.ops.select_victims import kernel

        return kernel.select_victims(priority, last_used, pinned, oldest, num_wanted, most)
    return reference.select_victims(priority, last_used, pinned, oldest, num_wanted, most)
