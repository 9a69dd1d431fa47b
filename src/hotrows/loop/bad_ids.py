"""Batches with bad ids that were planned in their own iteration on CUDA: the host learns of them later.

Such a batch has no rows, so it changes none. It must not count as an optimizer step either, although its backward pass
runs before the host knows.
"""

from collections import deque

from hotrows.cache.row_updater import RowUpdater
from hotrows.errors import BadIdError
from hotrows.loop.ticket import NOTHING_BAD, BatchTicket


class BadIdChecks:
    """The batches of one cache whose ids the host has not checked yet."""

    def __init__(self, updater: RowUpdater) -> None:
        self._updater = updater
        self._unchecked: deque[BatchTicket] = deque()
        self._steps: deque[tuple[BatchTicket, ...]] = deque()  # the batches of each optimizer step that is in doubt

    def check_later(self, ticket: BatchTicket) -> None:
        """Check a batch once the host can know without waiting, at the latest at `flush`."""
        if ticket.bad_id is not None and not ticket.checked:
            self._unchecked.append(ticket)

    def check(self, wait: bool = True) -> None:
        """Check the batches that `check_later` has noted, and raise `BadIdError` for the first bad one.

        Args:
            wait: check all of them, and wait for their announcements. Otherwise stop at the first one whose
                announcement is not complete.
        """
        while self._unchecked and (wait or self._unchecked[0].is_announcement_done()):
            try:
                self._unchecked[0].check_ids()
            except BadIdError:
                self._unchecked.popleft()
                self.uncount_bad_steps(wait=True)
                raise
            self._unchecked.popleft()

    def note_step(self, tickets: tuple[BatchTicket, ...]) -> None:
        """An optimizer step of these batches was counted."""
        if all(ticket.is_bad for ticket in tickets):
            self._updater.steps -= 1  # the host had already found the bad ids, as it may within `accumulate`
        elif all(ticket.is_bad or (ticket.bad_id is not None and not ticket.checked) for ticket in tickets):
            self._steps.append(tickets)

    def uncount_bad_steps(self, wait: bool) -> None:
        """Take back the steps of batches that turned out to have no rows.

        Args:
            wait: wait for the announcements of these batches, as is needed before the step count is used in a formula.
        """
        while self._steps:
            tickets = self._steps[0]
            if not wait and not all(ticket.is_announcement_done() for ticket in tickets):
                return
            had_no_rows = all(_is_bad(ticket) for ticket in tickets)
            self._steps.popleft()
            if had_no_rows:
                self._updater.steps -= 1


def _is_bad(ticket: BatchTicket) -> bool:
    return ticket.bad_id is not None and ticket.bad_id.bad_id()[0] != NOTHING_BAD
