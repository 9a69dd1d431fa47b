"""Pooled lookup as an autograd function whose backward pass updates the rows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hotrows.cache.row_updater import LookupGrads
from hotrows.loop.scheduler import Scheduler
from hotrows.loop.ticket import BatchTicket
from hotrows.loop.ticket_updates import values_to_train
from hotrows.nn.accumulation import CapturedUpdates, GradientAccumulation
from hotrows.ops.pool import pool
from hotrows.runtime.cuda_private import graph_break


class PooledRows(torch.autograd.Function):
    """(rows of a planned batch) → float32 [bags, D].

    `anchor` is a tensor that requires grad, so that autograd calls the backward pass: the rows are no parameters. With
    `not_updated` in place of `updates`, the backward pass only calls it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        weights: Tensor | None,
        scheduler: Scheduler,
        ticket: BatchTicket,
        offsets: Tensor | None,
        mode: str,
        updates: GradientAccumulation | CapturedUpdates | None,
        not_updated: Callable[[], None] | None,
    ) -> Tensor:
        plan, cache = ticket.plan, scheduler.cache
        assert plan is not None
        values, slots = (cache.records, plan.slots) if updates is None else values_to_train(scheduler, ticket)
        pooled, winner = pool(values, slots, offsets, weights, cache.dim, mode)
        ctx.ticket, ctx.updates, ctx.not_updated = ticket, updates, not_updated
        ctx.opened = None if updates is None else updates.open(ticket)
        ctx.winner = winner
        ctx.bag_of, ctx.scale = None, weights
        if offsets is not None:
            ctx.bag_of = _bag_of(offsets, plan.slots.numel())
            if mode == "mean":
                ctx.scale = _share(plan.slots, ctx.bag_of, offsets.numel() - 1)
        # The gradient of the weights needs the rows as they are now. By then they may have been updated.
        ctx.rows = _gather(values, slots, cache.dim) if ctx.needs_input_grad[1] else None
        return pooled

    @staticmethod
    @once_differentiable
    @graph_break
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = (grad if grad.is_cuda and grad.dtype is torch.bfloat16 else grad.float()).contiguous()
        grad_anchor = grad_weights = None
        if ctx.rows is not None:
            by_lookup = grad if ctx.bag_of is None else grad[ctx.bag_of]
            grad_weights = (by_lookup * ctx.rows).sum(1)
        if ctx.updates is not None:
            grads = LookupGrads(grad, ctx.bag_of, ctx.scale, ctx.winner)
            grad_anchor = ctx.updates.reach(ctx.opened, ctx.ticket, grads)
        if ctx.not_updated is not None:
            ctx.not_updated()
        return grad_anchor, grad_weights, None, None, None, None, None, None


def _bag_of(offsets: Tensor, num_lookups: int) -> Tensor:
    """The bag of every lookup, int32 [N]."""
    position = torch.arange(num_lookups, dtype=torch.int32, device=offsets.device)
    bag = torch.searchsorted(offsets[1:], position, right=True, out_int32=True)
    return bag.clamp_(max=max(offsets.numel() - 2, 0))


def _share(slots: Tensor, bag_of: Tensor, num_bags: int) -> Tensor:
    """One over the number of lookups that have a row in each lookup's bag, float32 [N]."""
    has_row = (slots >= 0).float()
    sizes = torch.zeros(num_bags, dtype=torch.float32, device=slots.device).index_add_(0, bag_of, has_row)
    return sizes.reciprocal_()[bag_of]


def _gather(records: Tensor, slots: Tensor, dim: int) -> Tensor:
    """The weights of every lookup's row, [N, D], zero where it has none."""
    values = records[slots.clamp(min=0), :dim]
    return torch.where((slots >= 0).unsqueeze(1), values, 0.0)
