"""What is moved between a store and its cache."""

from typing import NamedTuple

from torch import Tensor


class Moves(NamedTuple):
    """Records that leave slots, and records that come into them.

    A move without a row out (NO_ROW) writes nothing back, one without a row in fetches nothing; the slot of a move
    without both does not matter. No slot and no row occurs twice among the moves.
    """

    slots: Tensor  # int32 [K]
    rows_out: Tensor  # int64 [K]
    rows_in: Tensor  # int64 [K]
    num: Tensor  # int32 [1], how many of the K there are
    haste: float = 1.0  # how many times as many multiprocessors may move them as where they have a step's time
