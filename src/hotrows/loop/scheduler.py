"""The pipeline of one group: batches announced, planned ahead of their turn, and their rows on the way.

The host reads the counts of a plan a turn after it was queued (two in a ring, which is hardly waited for then). Where
the batches in flight leave no room for the next one, its plan is made again later, and fewer batches are planned ahead
from then on, unless they are sure to fit. Before none is, the batch that has trained no longer stays in flight for a
turn more. Now and then one more is tried, with one batch: no other is planned after it until the host knows whether it
fits, lest that one have its room, and be the older plan then, which keeps all slots taken since from being taken again.
What is tried is looked at sooner, so that it can still be planned again before its turn.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from hotrows.cache.row_cache import RowCache
from hotrows.loop.ticket import Flight, Request

LAG_IN_RING = 2  # turns after which the host looks at a plan
PATIENCE = 32  # turns until one batch more is planned ahead than there was room for; then twice as long
MOST_PATIENCE = 1024


class _Trial(Enum):
    """What may not fit."""

    PLACE = "one batch more is planned ahead"
    LAST = "the batch before the current one stays in flight"


@dataclass(slots=True)
class _Entry:
    """A batch that has not come. Without a flight it is to be planned."""

    request: Request
    flight: Flight | None = None
    turn: int = 0  # in which it was planned
    place: int = 0  # how many batches were to come before it then
    beside_last: bool = False  # whether the batch before the current one was in flight then
    tries: _Trial | None = None  # what was not known to fit then
    seen: bool = False  # the plan fitted


class Pipeline:
    """Args:
    depth: how many batches after the current one have their rows in the cache or on the way there.
    """

    def __init__(self, group: RowCache, depth: int) -> None:
        self._group = group
        self._depth = depth
        self._coming: deque[_Entry] = deque()
        self._turn = 0
        self._reach = self._full = depth + LAG_IN_RING  # how many batches after the current one are planned
        self._known_reach = self._full  # that there was room for, or that none has failed with yet
        self._patience = PATIENCE
        self._changed = 0  # turn in which the reach did
        self._current: tuple[Request, Flight | None] | None = None
        self._last: Flight | None = None  # kept in flight for one turn more
        self._keeps_last = self._known_keeps_last = True  # whether there is room for that, and is known to be
        self._last_changed, self._last_patience = 0, PATIENCE  # as for the reach

    def announce(self, request: Request) -> None:
        """A batch that comes after all announced before."""
        self._coming.append(_Entry(request))

    def turn(self) -> tuple[Request, Flight | None]:
        """The next batch; its plan, or None if it must be planned on the spot because it does not fit the cache."""
        if self._current is not None:
            self.finish()
        self._turn += 1
        self._advance()
        self._group.seating.end_turn()
        entry = self._coming.popleft()
        self._current = entry.request, entry.flight
        if self._group.stale_reads is not None:
            self._read_early()
        return self._current

    def _read_early(self) -> None:
        """Read the rows of the next batch, where they are on their way."""
        if self._coming and self._coming[0].flight is not None and self._coming[0].seen:
            self._group.read_early(self._coming[0].flight)

    def finish(self) -> None:
        """The current batch is done with.

        In a ring it stays in flight for one turn more, where there is room: the next plan and its moves then wait for
        the batch before it, and run while it still trains.
        """
        if self._current is not None:
            request, flight = self._current
            self._current = None
            self._let_last_go()
            if flight is None:
                self._group.withdraw(request)  # does nothing if it was planned on the spot
            elif flight.seat is not None and self._depth > 0 and self._keeps_last:
                self._last = flight
            else:
                self._group.drop(flight)

    def close(self) -> None:
        """Forget the batches that have not come. Rows on their way arrive, and simply are in the cache."""
        self.finish()
        self._let_last_go()
        while self._coming:
            entry = self._coming.popleft()
            if entry.flight is not None and not entry.seen:
                self._look(entry)
            if entry.flight is not None:
                self._group.forget(entry.flight)
                self._group.drop(entry.flight)
            else:
                self._group.withdraw(entry.request)

    def _advance(self) -> None:
        """Look at plans made some turns ago; plan the batch whose turn it is, and more ahead of theirs."""
        coming, turn = self._coming, self._turn
        for entry in coming:
            if entry.seen:
                continue
            if entry.flight is None:
                break
            if entry.turn <= turn - self._lag(entry):
                self._look(entry)
        self._try_more()
        # the batch whose turn it is, and `depth` more, are looked at; those after them will be
        first = coming[0].flight if coming else None
        last = self._depth + (1 if first is None or first.seat is None else LAG_IN_RING)
        for place, entry in enumerate(coming):
            if place > 0 and entry.flight is not None:
                if entry.tries is not None:
                    return
                continue
            if place > last or (place > self._reach and not self._group.surely_fits(entry.request)):
                return
            if entry.request.error is not None:
                if place > 0:
                    return  # those before it train
                raise RuntimeError("the rows of this batch could not be found ahead") from entry.request.error
            if place == 0 and entry.flight is not None and not entry.seen:
                self._look(entry)
            while entry.flight is None:
                flight = self._plan(place)
                if place > self._depth or (place > 0 and flight.seat is not None):
                    if entry.tries is not None:
                        return
                    break
                looked_at_all, beside_last = flight.plan.looked_at_all, entry.beside_last
                if not self._look(entry) and looked_at_all:
                    if not beside_last:
                        return
                    self._let_last_go()  # and try again

    def _lag(self, entry: _Entry) -> int:
        """Turns after which the host looks at a plan."""
        assert entry.flight is not None
        if entry.flight.seat is None:
            return 1
        return LAG_IN_RING if entry.tries is None else max(1, min(LAG_IN_RING, entry.place - 1))

    def _try_more(self) -> None:
        """Now and then, plan one batch more ahead, or let the last one stay in flight again; one at a time."""
        if self._reach == self._full and self._keeps_last:
            return
        if any(entry.tries is not None for entry in self._coming):
            return
        if self._reach < self._full:
            # where little is planned ahead, there is more to win than a plan made in vain costs
            patience = min(self._patience, PATIENCE // 2 * (self._reach + 1))
            if self._reach == self._known_reach and self._turn - self._changed >= patience:
                self._reach, self._changed = self._reach + 1, self._turn
                return
        if not self._keeps_last and self._reach > 0 and self._turn - self._last_changed >= self._last_patience:
            self._keeps_last, self._last_changed = True, self._turn

    def _plan(self, place: int) -> Flight:
        """Plan the batch that so many come before, and its party: batches that come right after it."""
        first = self._coming[place]
        next_place, beside_last, tries = place, self._last is not None, None
        if self._known_reach < place <= self._reach:
            tries = _Trial.PLACE
        elif beside_last and not self._known_keeps_last and place >= self._reach:
            tries = _Trial.LAST
        for flight in self._group.plan_ahead(first.request, soon=place <= 1):
            entry = self._coming[next_place] if next_place < len(self._coming) else None
            if entry is None or entry.request is not flight.request:
                self._group.drop(flight)  # of a batch that does not come: announcing it to another group has failed
                continue
            entry.flight, entry.turn, entry.place, entry.seen = flight, self._turn, next_place, False
            entry.beside_last, entry.tries = beside_last, tries
            next_place += 1
        assert first.flight is not None
        return first.flight

    def _look(self, entry: _Entry) -> bool:
        """See whether a plan fitted; where it did not, the batch has none again."""
        assert entry.flight is not None
        flight, entry.seen = entry.flight, self._group.resolve(entry.flight)
        tries, entry.tries = entry.tries, None
        if entry.seen:
            if tries is _Trial.PLACE:
                self._known_reach = max(self._known_reach, min(entry.place, self._reach))
            elif tries is _Trial.LAST:
                self._known_keeps_last = self._keeps_last
            return True
        entry.flight = None
        self._forget_party(flight)
        if flight.plan.looked_at_all:
            self._group.seating.keep_apart(entry.request)
            self._learn(entry, tries)
        return False

    def _learn(self, entry: _Entry, tries: _Trial | None) -> None:
        """A batch had no room.

        What was tried is given up. Otherwise batches after it may have been planned meanwhile, and have taken the room
        it needs. So fewer are planned ahead from then on: it is nearer batches that must not fail. The next one is
        planned all the same where it was the last one that took its room, which does not stay from then on.
        """
        reach = entry.place - (1 if entry.place <= LAG_IN_RING + 1 else 2)
        if tries is _Trial.PLACE:
            reach = min(self._known_reach, entry.place - 1)
        elif tries is _Trial.LAST:
            reach = self._reach
            self._keep_no_last()
        elif entry.place <= 1 and entry.beside_last:
            reach = entry.place
            self._keep_no_last()
        if reach < self._reach:
            self._reach, self._changed = max(0, reach), self._turn
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._known_reach = min(self._known_reach, self._reach)

    def _forget_party(self, flight: Flight) -> None:
        """Where a plan did not fit, those of its party did not."""
        party = flight.request.party
        for entry in self._coming:
            if entry.flight is not None and party is not None and entry.request.party is party:
                self._group.resolve(entry.flight)
                entry.flight = entry.tries = None

    def _keep_no_last(self) -> None:
        if self._keeps_last:
            # it was tried again a moment ago, in vain, or a batch is larger than others
            in_vain = not self._known_keeps_last
            self._last_patience = min(2 * self._last_patience, MOST_PATIENCE) if in_vain else PATIENCE
            self._keeps_last, self._last_changed = False, self._turn
        self._known_keeps_last = False
        self._let_last_go()

    def _let_last_go(self) -> None:
        """Let the batch before the current one land."""
        if self._last is not None:
            last, self._last = self._last, None
            self._group.drop(last)
