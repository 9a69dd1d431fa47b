"""The list of moves between a store and its cache."""

from typing import NamedTuple

from torch import Tensor


class Moves(NamedTuple):
    """For each slot, the row whose record is written back and the row whose record is fetched.

    A move without a row out (NO_ROW) writes nothing back, and one without a row in fetches nothing. The slot of a move
    with neither is ignored. No slot and no row occurs twice among the moves.
    """

    slots: Tensor  # int32 [K]
    rows_out: Tensor  # int64 [K]
    rows_in: Tensor  # int64 [K]
    num: Tensor  # int32 [1], how many of the K are filled
    sm_scale: float = 1.0  # scales the number of multiprocessors; 1 if the moves may take as long as a training step
