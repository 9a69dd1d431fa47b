"""The pipeline of one group: batches announced, planned ahead of their turn, and their rows on the way.

A plan is queued one turn before its moves, so that the host reads its counts without waiting. Where the batches in
flight leave no room for the next one, the plan is put off, and the depth is smaller until there is room again.
"""

from collections import deque

from hotrows.cache.group import Flight, Request, RowGroup


class Pipeline:
    """Args:
    depth: how many batches after the current one have their rows in the cache or on the way there.
    """

    def __init__(self, group: RowGroup, depth: int) -> None:
        self._group = group
        self._depth = depth
        self._waiting: deque[Request] = deque()
        self._moving: deque[tuple[Request, Flight]] = deque()
        self._planned: Flight | None = None  # of the first one waiting, not looked at yet
        self._current: tuple[Request, Flight | None] | None = None

    def announce(self, request: Request) -> None:
        """A batch that comes after all announced before."""
        self._waiting.append(request)

    def turn(self) -> tuple[Request, Flight | None]:
        """The next batch; its plan, or None if it must be planned on the spot because it does not fit the cache."""
        self.finish()
        self._advance()
        if self._moving:
            self._current = self._moving.popleft()
        else:
            self._current = self._waiting.popleft(), None
        return self._current

    def finish(self) -> None:
        """The current batch is done with."""
        if self._current is not None:
            request, flight = self._current
            self._current = None
            self._let_go(request, flight)

    def close(self) -> None:
        """Forget the batches that have not come. Rows on their way arrive, and simply are in the cache."""
        self.finish()
        self._look()
        while self._moving:
            self._let_go(*self._moving.popleft())
        while self._waiting:
            self._group.withdraw(self._waiting.popleft())

    def _advance(self) -> None:
        self._look()
        # the batch whose turn it is, and `depth` more
        while len(self._moving) <= self._depth and self._waiting:
            self._planned = self._group.plan_ahead(self._waiting[0])
            if not self._look():
                return
        if self._waiting:
            self._planned = self._group.plan_ahead(self._waiting[0])

    def _look(self) -> bool:
        """See whether the plan made last fitted."""
        flight, self._planned = self._planned, None
        if flight is None or not self._group.settle(flight):
            return False
        self._moving.append((self._waiting.popleft(), flight))
        return True

    def _let_go(self, request: Request, flight: Flight | None) -> None:
        if flight is not None:
            self._group.drop(flight)
        else:
            self._group.withdraw(request)  # does nothing if it was planned on the spot
