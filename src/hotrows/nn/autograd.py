"""Pooled lookup as an autograd function whose backward pass updates the rows."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hotrows.cache.row_cache import RowCache
from hotrows.loop.ticket import Flight, LookupGrads
from hotrows.nn.accumulation import CapturedUpdates, Updates
from hotrows.ops.pool import pool

_AHEAD = 1 << 62


class PooledRows(torch.autograd.Function):
    """(rows of a plan) → float32 [bags, D].

    `anchor` is a tensor that requires grad, for autograd to come back here: the rows are no parameters.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        weights: Tensor | None,
        group: RowCache,
        flight: Flight,
        offsets: Tensor | None,
        mode: str,
        updates: Updates | CapturedUpdates | None,
    ) -> Tensor:
        plan = flight.plan
        values, slots = (group.cache, plan.slots) if updates is None else group.values_to_train(flight)
        pooled, winner = pool(values, slots, offsets, weights, group.dim, mode)
        ctx.group, ctx.flight, ctx.updates = group, flight, updates
        ctx.opened = None if updates is None else updates.open(flight)
        ctx.winner = winner
        ctx.bag_of, ctx.scale = None, weights
        if offsets is not None:
            ctx.bag_of = _bag_of(offsets, plan.slots.numel())
            if mode == "mean":
                ctx.scale = _share(plan.slots, ctx.bag_of, offsets.numel() - 1)
        # the rows as they are now, for the gradient of the weights: they may have been updated by then
        ctx.rows = _gather(values, slots, group.dim) if ctx.needs_input_grad[1] else None
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = (grad if grad.is_cuda and grad.dtype is torch.bfloat16 else grad.float()).contiguous()
        grad_weights = None
        if ctx.rows is not None:
            by_lookup = grad if ctx.bag_of is None else grad[ctx.bag_of]
            grad_weights = (by_lookup * ctx.rows).sum(1)
        if ctx.updates is not None:
            ctx.updates.reach(ctx.opened, ctx.flight, LookupGrads(grad, ctx.bag_of, ctx.scale, ctx.winner))
        return None, grad_weights, None, None, None, None, None


def updated_first(embedded: Tensor) -> Tensor:
    """The same, whose gradient updates rows as soon as it is there, beside what is left of the backward pass.

    Of what is ready, autograd takes first what was made last. That would be these rows last, though their gradient is
    there as soon as the layers above have theirs.
    """
    node: Any = embedded.grad_fn
    while node is not None and node._sequence_nr() < _AHEAD:  # ends at the anchor, which autograd has first already
        node._set_sequence_nr(node._sequence_nr() + _AHEAD)
        node = node.next_functions[0][0]
    return embedded


def _bag_of(offsets: Tensor, num_lookups: int) -> Tensor:
    """The bag of every lookup, int32 [N]."""
    position = torch.arange(num_lookups, dtype=torch.int32, device=offsets.device)
    bag = torch.searchsorted(offsets[1:], position, right=True, out_int32=True)
    return bag.clamp_(max=max(offsets.numel() - 2, 0))


def _share(slots: Tensor, bag_of: Tensor, num_bags: int) -> Tensor:
    """One over the number of lookups that take part in each lookup's bag, float32 [N]."""
    taking_part = (slots >= 0).float()
    sizes = torch.zeros(num_bags, dtype=torch.float32, device=slots.device).index_add_(0, bag_of, taking_part)
    return sizes.reciprocal_()[bag_of]


def _gather(cache: Tensor, slots: Tensor, dim: int) -> Tensor:
    """The weights of every lookup's row, zero where it has none, [N, D]."""
    values = cache[slots.clamp(min=0), :dim]
    return torch.where((slots >= 0).unsqueeze(1), values, 0.0)
