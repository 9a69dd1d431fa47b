"""The ticket of a batch: its states, and which forward passes it belongs to."""

from itertools import product
from typing import Any

import pytest
import torch

import hotrows
from hotrows.loop.ticket import BatchTicket, TicketState

ANNOUNCED, PLANNED, REJECTED, READY, TRAINED, RELEASED = TicketState
ALLOWED = {
    (ANNOUNCED, PLANNED), (ANNOUNCED, RELEASED), (PLANNED, READY), (PLANNED, REJECTED), (REJECTED, ANNOUNCED),
    (READY, TRAINED), (READY, RELEASED), (TRAINED, RELEASED),
}  # fmt: skip


def make(*ids: torch.Tensor) -> BatchTicket:
    unused: Any = None
    return BatchTicket(unused, ids, unused, None, None)


@pytest.mark.parametrize(("before", "after"), list(product(TicketState, TicketState)))
def test_a_transition_that_the_diagram_does_not_have_raises(before: TicketState, after: TicketState) -> None:
    ticket = make()
    ticket.state = before
    if (before, after) in ALLOWED:
        ticket.move_to(after)
        assert ticket.state is after
    else:
        with pytest.raises(RuntimeError, match=f"cannot go from {before.value} to {after.value}"):
            ticket.move_to(after)
        assert ticket.state is before


def test_a_forward_pass_matches_if_it_has_the_same_ids() -> None:
    ids, others = torch.tensor([1, 2]), torch.tensor([1, 3])
    ticket = make(ids)
    assert ticket.matches([ids])
    assert ticket.matches([ids.clone()])
    assert not ticket.matches([others])
    ids[0] = 5
    assert not ticket.matches([ids]), "the ids were changed in place after they were announced"
    assert not ticket.has_ids_among([ids])


def test_ids_are_found_among_the_values_of_a_batch() -> None:
    ids, dense = torch.tensor([1, 2]), torch.zeros(2)
    ticket = make(ids)
    assert ticket.has_ids_among([dense, ids])
    assert not ticket.has_ids_among([dense, ids.clone()])


@pytest.mark.parametrize(("size", "states"), [(30, {READY}), (5, {ANNOUNCED})])
def test_the_tickets_of_a_loop_go_through_the_states(size: int, states: set[TicketState]) -> None:
    """In its iteration a batch that fits is ready. One that does not fit is only announced, and planned when needed."""
    random = torch.Generator().manual_seed(0)
    data = [torch.randint(50, (12, 1), generator=random) for _ in range(10)]
    bag = hotrows.EmbeddingBag(50, 4, cache=size, optimizer=hotrows.optim.SGD(lr=0.1))
    seen: list[BatchTicket] = []
    for ids in hotrows.lookahead(data, bag, depth=2, window=4, ids=lambda ids: ids):
        assert bag.current is not None
        seen += bag.current
        assert {ticket.state for ticket in bag.current} == states
        bag(ids).sum().backward()
    assert {ticket.state for ticket in seen} == {RELEASED}
    assert all(ticket.references == 0 for ticket in seen if states == {READY})
    assert not bag.schedulers[0].in_flight
