"""What the operations agree on: marks for 'nothing here', and how much of a padded array is filled."""

from torch import Tensor

NO_ROW = -1  # in an array of rows: no row here
NO_SLOT = -1  # in an array of slots: no slot here
LOOKUPS_PER_BLOCK = 16  # of a sorted batch, whose gradients are added up together


def filled(array: Tensor, num: Tensor) -> int:
    """How many leading elements of `array` to work on: the count itself where reading it is free, all on CUDA."""
    return array.shape[0] if num.is_cuda else int(num)
