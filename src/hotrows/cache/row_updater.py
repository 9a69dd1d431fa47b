"""Applies the row optimizer to the records that a plan points to."""

from dataclasses import dataclass

from torch import Tensor

from hotrows.cache.planning.protocol import Plan
from hotrows.cache.row_cache import RowCache
from hotrows.ops.backward_update import backward_update
from hotrows.ops.segment_sum import segment_sum
from hotrows.ops.unique import UniqueRows
from hotrows.optim import RowOptimizer


@dataclass
class LookupGrads:
    """The gradients of one forward pass's bags, and how they are distributed to its lookups (see `ops.segment_sum`)."""

    grad: Tensor  # float32 or bfloat16 [bags, D]
    bag_of: Tensor | None = None
    scale: Tensor | None = None
    winner: Tensor | None = None

    def by_row(self, unique: UniqueRows) -> Tensor:
        """The sum of the gradients of each unique row, float32 [U, D]."""
        return segment_sum(
            self.grad.float(), unique.order, unique.starts, unique.num, self.bag_of, self.scale, self.winner
        )


class RowUpdater:
    """The optimizer of the rows of one cache, and its step count."""

    def __init__(self, cache: RowCache, optimizer: RowOptimizer | None) -> None:
        self.cache = cache
        self.optimizer = optimizer
        self.steps = 0

    def next_step(self) -> tuple[float, ...]:
        """Count one optimizer step, and return its hyperparameters (`RowOptimizer.hyper`)."""
        assert self.optimizer is not None
        self.steps += 1
        self.optimizer.note_step()
        return self.optimizer.hyper(self.steps)

    def take_step(self, plan: Plan, grads: LookupGrads) -> None:
        """Count one optimizer step and apply it to a plan's unique rows. If that fails, nothing has changed."""
        num_steps = self.steps
        try:
            self.apply(plan, grads, self.next_step())
        except BaseException:
            self.steps = num_steps
            raise

    def apply(self, plan: Plan, grads: LookupGrads, hyper: Tensor | tuple[float, ...]) -> None:
        """Update the records of a plan's unique rows, in the current stream."""
        assert self.optimizer is not None
        unique = plan.unique
        backward_update(
            self.optimizer.rule, self.cache.records, plan.row_slots, unique.num, grads.grad, unique.order,
            unique.starts, grads.bag_of, grads.scale, grads.winner, self.cache.dim, hyper, unique.block_rows,
        )  # fmt: skip
