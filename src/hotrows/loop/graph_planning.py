"""Planning in a CUDA graph: which batch has which request buffer and plan buffer, and when the graph is replayed.

A graph works on fixed memory. A batch is announced into a request buffer and planned into a plan buffer. Each request
buffer is always planned into the same plan buffers. The batch gives up the request buffer once its plan is known to
fit, and the plan buffer when it is released. One replay announces one group of coalesced batches and plans another. So
an announcement joins the next replay that plans, unless the host is about to wait for that plan, because the host would
then wait longer.
"""

import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.protocol import Placement
from hotrows.loop.ticket import BatchTicket, CoalescedBatches, TicketState
from hotrows.ops.unique import UniqueRows
from hotrows.runtime.readback import Readback, UniqueCountReadback
from hotrows.runtime.streams import Event, record_event, writable_state

if TYPE_CHECKING:  # the first needs Triton, the second makes this object
    from hotrows.cache.planning.planning_graph import PlanningGraph
    from hotrows.loop.scheduler import Scheduler

CHECK_PINNED_EVERY = 16  # batches; asking whether ids are pinned is slow


class _PlanArguments(NamedTuple):
    """What `PlanningGraph.prepare_plan` takes."""

    request_buffer: int
    oldest: int | None
    batch_number: int
    num_rows: int
    scan_all: bool
    num_batches: int


class GraphPlanning:
    """The planning graph of one cache, and the tickets that use its buffers."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler: Scheduler = weakref.proxy(scheduler)  # no reference cycle: it is freed with its last user
        self.graph: PlanningGraph | None = None
        self._depth, self._window = 0, 1  # of the open loop
        self._in_request_buffer: dict[int, CoalescedBatches] = {}
        self._in_plan_buffer: dict[int, BatchTicket] = {}  # the ticket that used each plan buffer last
        self._last_uses: dict[int, Sequence[Event]] = {}  # of the plan buffers of released tickets
        self._gathering: CoalescedBatches | None = None  # batches that further ones may join
        self._to_announce: CoalescedBatches | None = None  # batches that the next plan takes along
        self._failure: BaseException | None = None  # why the last replay failed, if it did
        self._on_cuda = scheduler.device.type == "cuda"
        self._num_announced = 0
        self._ids_are_pageable = True

    def open(self, depth: int, window: int) -> None:
        """A loop begins. What an interrupted loop left in the buffers is given up."""
        self._scheduler.resolve_all()  # a plan that fits gives up its request buffer
        self._depth, self._window = depth, window
        self._gathering = self._to_announce = None
        for coalesced in list(self._in_request_buffer.values()):
            self.separate(coalesced.tickets[0])

    def announce(self, ids: Tensor, columns: IdColumns, describe: Callable[[list[int]], str]) -> BatchTicket | None:
        """Give a batch a request buffer; None if its shape does not suit the graph, or no buffer is free."""
        scheduler, graph = self._scheduler, self.graph
        is_separate = scheduler.announcements.is_separate
        if (
            graph is None
            or not graph.accepts(ids, self._depth, self._window)
            or (is_separate and graph.max_coalesced > 1)
        ):
            graph = self._make_graph(ids, columns)
            if graph is None:
                return None
        source = ids.pin_memory() if self._is_pageable(ids) else ids
        coalesced = self._gathering
        is_complete = graph.max_coalesced == 1 + (0 if coalesced is None else len(coalesced.tickets))
        if is_complete and self._to_announce is not None:
            self._replay(None, ())  # before this batch joins the group, so that a failure leaves the group as it was
        if coalesced is None:
            scheduler.announcements.flush()  # batches outside the graph that came before this one do not wait for more
            request_buffer = graph.next_request_buffer()
            if request_buffer in self._in_request_buffer:
                return None
            if not graph.has_room() and not graph.rebuild_makes_room():
                # The next-use table must grow. For a batch whose unique rows are not counted yet it makes room for
                # every lookup, so wait for the counts first.
                self.flush_announcement()
                scheduler.announcements.note_unique_counts(wait=True)
            union_count = Readback(graph.union_count(request_buffer))
            coalesced = CoalescedBatches(
                scheduler.announcements.next_batch_number(), union_count, request_buffer=request_buffer
            )
        part = len(coalesced.tickets)
        readback = UniqueCountReadback(
            graph.unique_count(coalesced.request_buffer, part), ids, columns.columns, graph.num_lookups
        )
        unique = graph.unique_rows(coalesced.request_buffer, part)
        ticket = BatchTicket(unique, (ids,), readback, readback, describe, coalesced=coalesced)
        coalesced.tickets.append(ticket)
        coalesced.ids.append(source)
        if ids.is_cuda:
            coalesced.ids_ready = (*coalesced.ids_ready, record_event(scheduler.device))
        self._in_request_buffer[coalesced.request_buffer] = self._gathering = coalesced
        if is_complete:
            self._complete_gathering()
        return ticket

    def _complete_gathering(self) -> None:
        """No more batches join those that are gathered."""
        if self._to_announce is not None:
            self._replay(None, ())
        self._to_announce, self._gathering = self._gathering, None

    def _is_pageable(self, ids: Tensor) -> bool:
        """True if ids must be copied to pinned memory first: the host would wait for the copy of pageable memory."""
        if not self._on_cuda or ids.is_cuda:
            return False
        if self._num_announced % CHECK_PINNED_EVERY == 0:
            self._ids_are_pageable = not ids.is_pinned()
        self._num_announced += 1
        return self._ids_are_pageable

    def end_iteration(self) -> None:
        """Announce the batch that no plan of this iteration took along, if it is not coalesced with others.

        Coalesced batches wait for a plan of a later iteration.
        """
        if self.graph is not None and self.graph.max_coalesced == 1:
            self.flush_announcement()

    def flush_announcement(self) -> None:
        """Announce now what would have been announced with the next plan."""
        if self.graph is not None and self.graph.is_broken:
            self._fail_announcements()
            return
        if self._gathering is not None:
            self._complete_gathering()
        if self._to_announce is not None:
            self._replay(None, ())

    def _fail_announcements(self) -> None:
        """A replay has failed, and this graph is not replayed again."""
        for coalesced in (self._gathering, self._to_announce):
            for ticket in [] if coalesced is None else coalesced.tickets:
                ticket.error = self._failure
        self._gathering = self._to_announce = None

    def plan(self, ticket: BatchTicket, soon: bool) -> list[BatchTicket]:
        """Plan an announced batch and those it is coalesced with; nothing if their plan buffers are not free.

        Args:
            soon: the batch trains in this iteration or in the next one. Then a graph that does not coalesce leaves a
                waiting announcement of another batch to a later replay.
        """
        scheduler, graph, coalesced = self._scheduler, self.graph, ticket.coalesced
        if graph is None or graph.is_broken or coalesced is None or coalesced.request_buffer < 0:
            return []
        number = coalesced.batch_number
        if number is None:
            return []
        if coalesced is self._gathering:
            self._complete_gathering()
        plan_buffers = graph.plan_buffers_of(coalesced.request_buffer)
        if any(not last.is_released for last in map(self._in_plan_buffer.get, plan_buffers) if last is not None):
            return []
        last_uses: list[Event] = []
        for plan_buffer in plan_buffers:
            last_uses += self._last_uses.get(plan_buffer, ())
            self._in_plan_buffer.pop(plan_buffer, None)  # overwritten even if the group has no batch for this buffer
        assert coalesced.unique_count is not None
        read, tickets = coalesced.unique_count.poll(), coalesced.tickets
        num_rows = graph.num_lookups * len(tickets) if read is None else read[0]
        arguments = _PlanArguments(
            coalesced.request_buffer, scheduler.in_flight.oldest, number, num_rows, scheduler.must_scan_all(ticket),
            len(tickets),
        )  # fmt: skip
        released = tuple(scheduler.in_flight.released)
        takes_announcement = not soon or graph.max_coalesced > 1 or self._to_announce is coalesced
        event, (last, scanned_all) = self._replay(arguments, (*last_uses, *released), takes_announcement)
        leader = None
        for plan_number, planned, plan_buffer in zip(
            count(last + 1 - len(tickets)), tickets, plan_buffers, strict=False
        ):
            planned.plan = graph.plan_in(
                plan_buffer, plan_number, None if leader else number, 0 if leader else num_rows, scanned_all
            )
            planned.placement, planned.counts_readback = Placement.ATOMIC, Readback(graph.counts(plan_buffer), event)
            planned.planned = planned.ready = event
            planned.move_after, planned.plan_buffer, planned.leader = released, plan_buffer, leader
            planned.move_to(TicketState.PLANNED)
            self._in_plan_buffer[plan_buffer] = planned
            leader = leader or planned
        return list(tickets)

    def _replay(
        self, arguments: _PlanArguments | None, after: tuple[Event, ...], announces: bool = True
    ) -> tuple[Event, tuple[int, bool]]:
        """Replay the graph: announce what is to be announced, plan other batches, and move their rows.

        Returns:
            The event behind the replay, and what `PlanningGraph.prepare_plan` returned: the last plan number, and
            whether victims were searched among all slots.
        """
        scheduler, graph = self._scheduler, self.graph
        assert graph is not None
        coalesced = self._to_announce if announces else None
        if announces:
            self._to_announce = None
        made = (-1, False)
        records_address = scheduler.cache.records.data_ptr()
        if coalesced is not None:
            after = (*coalesced.ids_ready, *after)

        def work() -> None:
            nonlocal made
            if coalesced is not None:
                assert coalesced.batch_number is not None
                graph.prepare_announcement(coalesced.ids, coalesced.request_buffer, coalesced.batch_number)
            if arguments is not None:
                made = graph.prepare_plan(*arguments)
            graph.run(coalesced is not None, arguments is not None, records_address)

        try:
            event = scheduler.streams.submit_planning_graph(work, after)
            graph.submitted(event)
        except BaseException as error:
            self._failure = error
            if coalesced is not None:
                for ticket in coalesced.tickets:
                    ticket.error = error  # raised again when its iteration begins: now, another batch may be current
            raise
        if coalesced is not None:
            self._note_announced(coalesced, event)
        return event, made

    def _note_announced(self, coalesced: CoalescedBatches, event: Event) -> None:
        for ticket in coalesced.tickets:
            ticket.announced = event
            ticket.unique_count.completes_at(event)
        assert coalesced.unique_count is not None
        coalesced.unique_count.completes_at(event)
        self._scheduler.announcements.count_later(coalesced)
        self._scheduler.streams.keep_alive_until(coalesced.ids, event)
        coalesced.ids = []

    def has_plan_buffer(self, ticket: BatchTicket) -> bool:
        """True while a ticket's plan is still in its plan buffer."""
        return ticket.plan_buffer is not None and self._in_plan_buffer.get(ticket.plan_buffer) is ticket

    def note_use(self, ticket: BatchTicket, event: Event) -> None:
        """Note that a released ticket used its plan buffer once more, as a second backward pass does."""
        if ticket.plan_buffer is not None and self.has_plan_buffer(ticket):
            self._last_uses[ticket.plan_buffer] = [*self._last_uses.get(ticket.plan_buffer, ()), event]

    def free_request_buffer(self, ticket: BatchTicket) -> None:
        """A ticket's plan fits, so it no longer needs its request buffer."""
        coalesced, ticket.coalesced = ticket.coalesced, None
        if coalesced is not None:
            ticket.unique_count.result()  # it has arrived: read it now, before another batch reuses its memory
            coalesced.num_resolved += 1
            if coalesced.num_resolved == len(coalesced.tickets):
                del self._in_request_buffer[coalesced.request_buffer]

    def free_plan_buffer(self, ticket: BatchTicket, last_uses: Sequence[Event] | None = None) -> None:
        """A ticket no longer needs its plan buffer.

        Args:
            last_uses: events behind the last uses of the buffer by this ticket; None if its plan was rejected.
        """
        assert ticket.plan_buffer is not None
        if last_uses is None:
            del self._in_plan_buffer[ticket.plan_buffer]
        else:
            self._last_uses[ticket.plan_buffer] = last_uses

    def separate(self, ticket: BatchTicket) -> None:
        """Give a ticket, and those it is coalesced with, unique rows outside the request buffer."""
        scheduler, graph, coalesced = self._scheduler, self.graph, ticket.coalesced
        if coalesced is None:
            return
        if coalesced in (self._gathering, self._to_announce):
            self.flush_announcement()
        assert graph is not None
        tickets, number, coalesced.batch_number = coalesced.tickets, coalesced.batch_number, None
        rows, num = graph.union_rows(coalesced.request_buffer)
        union = ticket.unique._replace(rows=rows, num=num)
        # In a graph that does not coalesce, the number is the batch's own, and the batch keeps it. Otherwise the number
        # is the union's, and is withdrawn with the union's rows. These may be more than the rows of the batches: a
        # batch with a bad id has no rows, but its good ids are in the union.
        keeps_number = graph.max_coalesced == 1
        if keeps_number:
            ticket.batch_number = number
        withdrawn, planner = None if keeps_number else number, scheduler.cache.planner

        def work() -> None:
            if withdrawn is not None:
                planner.withdraw(union, withdrawn)
            for each in tickets:
                each.unique = UniqueRows(*(part.clone() for part in each.unique))

        scheduler.streams.submit_plan(work)
        for each in tickets:
            each.coalesced = None
            if each.announced is not None:
                each.unique_count.result()  # read it before the memory is reused; this may wait for the announcement
        del self._in_request_buffer[coalesced.request_buffer]

    def _make_graph(self, ids: Tensor, columns: IdColumns) -> "PlanningGraph | None":
        """A planning graph for batches of this shape; None if there can be none now."""
        scheduler = self._scheduler
        if ids.numel() == 0 or self._depth == 0:
            return None  # with depth 0, rows move in their batch's iteration, but a graph moves them when it plans
        from hotrows.cache.planning.planning_graph import PlanningGraph, batches_to_coalesce

        if self._in_request_buffer or any(ticket.plan_buffer is not None for ticket in scheduler.in_flight):
            return None  # the graph of another shape is in use, as by a loop whose last batch is shorter
        scheduler.streams.last_plan.synchronize()  # the old graph is not in use any more
        cache = scheduler.cache
        num_lookups = ids.shape[0] * columns.first_row.numel()
        chosen = scheduler.coalesce or batches_to_coalesce(cache.planner, num_lookups, self._depth, self._window)
        if scheduler.announcements.is_separate:
            chosen = 1
        cache_proxy = weakref.proxy(cache)  # the cache must not be kept alive by its own graph
        with writable_state():
            self.graph = PlanningGraph(
                cache.planner, columns, ids.shape, ids.dtype, self._depth, self._window, cache.store.num_rows,
                scheduler.device, lambda moves: cache_proxy.move(moves), chosen,
            )  # fmt: skip
        record_event(scheduler.device).synchronize()
        self._in_plan_buffer.clear()
        self._last_uses.clear()
        return self.graph
