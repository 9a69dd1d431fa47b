"""Conventions that all operations share: the values for 'no row' and 'no slot', and the length of a padded array."""

from torch import Tensor

NO_ROW = -1  # in an array of rows: this lookup has no row
NO_SLOT = -1  # in an array of slots: this row has no slot
LOOKUPS_PER_BLOCK = 16  # consecutive lookups of a sorted batch, summed by one program


def filled(array: Tensor, num: Tensor) -> int:
    """How many leading elements of `array` to work on: `num` on the CPU; on CUDA, where reading it would wait, all."""
    return array.shape[0] if num.is_cuda else int(num)
