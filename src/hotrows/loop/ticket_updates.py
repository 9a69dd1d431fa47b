"""What the forward and the backward pass do with a ticket: read its rows, and update them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.cache.planning.protocol import Placement
from hotrows.cache.row_updater import LookupGrads
from hotrows.cache.stale_reads import StaleRead, StaleReads
from hotrows.loop.scheduler import Scheduler
from hotrows.loop.ticket import BatchTicket, CheckedRows
from hotrows.runtime.streams import record_event, writable_state


@dataclass
class Contribution:
    """Gradients of one forward pass by row, waiting to be applied together with others."""

    ticket: BatchTicket
    rows: Tensor  # int64 [N], unique, numbered table after table, NO_ROW behind the last
    grads: Tensor  # float32 [N, D]


def values_to_train(scheduler: Scheduler, ticket: BatchTicket) -> tuple[Tensor, Tensor]:
    """The values [·, D or more] that a training forward pass reads, and which of them each lookup reads, int32 [N]."""
    assert ticket.plan is not None
    if ticket.stale_read is None or scheduler.stale_reads is None:
        return scheduler.cache.records, ticket.plan.slots
    scheduler.stale_reads.count(ticket.stale_read, scheduler.cache.records, ticket.plan.row_slots)
    return ticket.stale_read.values, ticket.plan.unique.inverse


def can_update_in_place(scheduler: Scheduler, ticket: BatchTicket) -> bool:
    """True if the records that the plan points to still are the current ones. The caller retains the ticket."""
    assert not ticket.is_released
    assert ticket.plan is not None
    return not ticket.overflows or ticket.plan.plan_number == scheduler.cache.planner.plan_number


def update(scheduler: Scheduler, ticket: BatchTicket, grads: LookupGrads) -> None:
    """Apply one optimizer step to the rows of a plan, in the caller's stream."""
    assert ticket.plan is not None
    scheduler.cache.check()
    if scheduler.stale_reads is not None and scheduler.stale_reads.last is not None:
        scheduler.wait_event(scheduler.stale_reads.last)
    _apply_step(scheduler, ticket, grads, (ticket,))


def update_together(scheduler: Scheduler, contributions: list[Contribution]) -> None:
    """Add up the gradients of several passes by row, then apply one optimizer step."""
    rows = torch.cat([part.rows for part in contributions])
    grads = torch.cat([part.grads for part in contributions])
    # The rows of the parts were allocated in the planning stream, which must not reuse their memory before the caller's
    # stream has read them.
    scheduler.streams.keep_alive_until(contributions, record_event(scheduler.device))
    ticket = scheduler.announcements.announce_rows(lambda: CheckedRows(rows))
    scheduler.plan_now(ticket, Placement.SPILL)
    try:
        scheduler.acquire(ticket)
        if scheduler.stale_reads is not None and scheduler.stale_reads.last is not None:
            scheduler.wait_event(scheduler.stale_reads.last)
        _apply_step(scheduler, ticket, LookupGrads(grads), tuple(part.ticket for part in contributions))
    finally:
        scheduler.release(ticket)


def _apply_step(
    scheduler: Scheduler, ticket: BatchTicket, grads: LookupGrads, batches: tuple[BatchTicket, ...]
) -> None:
    assert ticket.plan is not None
    updater, plan = scheduler.updater, ticket.plan
    assert updater.optimizer is not None
    scheduler.bad_ids.uncount_bad_steps(wait=updater.optimizer.depends_on_step)
    scheduler.overflow_copies.before_update(ticket)
    updater.take_step(plan, grads)
    scheduler.bad_ids.note_step(batches)
    scheduler.overflow_copies.write_back()


def switch_on_early_reads(scheduler: Scheduler) -> None:
    """Switch stale reads on: the rows of a batch planned ahead are read when they are fetched (`cache.stale_reads`)."""
    if not scheduler.cache.holds_all_rows:
        scheduler.stale_reads = StaleReads(scheduler.device)
        scheduler.uses_graph = False


def read_early(scheduler: Scheduler, ticket: BatchTicket) -> None:
    """Read the rows of the next batch, behind its moves and all updates so far. The next update waits for the read."""
    if scheduler.stale_reads is None or ticket.stale_read is not None:
        return
    assert ticket.ready is not None
    assert ticket.plan is not None
    slots, records, dim = ticket.plan.row_slots, scheduler.cache.records, scheduler.cache.dim
    with writable_state():
        values = torch.empty(slots.numel(), dim, device=scheduler.device)

    def work() -> None:
        values.copy_(records[slots.clamp(min=0), :dim])

    after = (record_event(scheduler.device), ticket.ready)
    ticket.ready = scheduler.stale_reads.last = scheduler.streams.submit_move(work, after)
    ticket.stale_read = StaleRead(values)
