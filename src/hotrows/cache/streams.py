"""The two work streams of a cache, and the order of everything that moves rows.

Rule 2 of the exactness argument lives here: all moves of a cache run in the order of their plans. The planning graph
moves rows in the planning stream, everything else in the moving stream. Moves in one stream wait for the earlier moves
in the other.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hotrows.runtime.readback import Readback, submit_with_readback
from hotrows.runtime.streams import Event, WorkStream, all_complete, make_streams, record_event


class CacheStreams:
    """The streams in which one cache plans and moves rows, beside the caller's stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.planning: WorkStream
        self.moving: WorkStream
        self.planning, self.moving = make_streams(device)
        self.last_plan: Event = record_event(device)
        self._last_move: Event | None = None  # the last move that the planning graph must still wait for
        self._kept_alive: deque[tuple[tuple[Event, ...], object]] = deque()

    def submit_plan(self, work: Callable[[], None], after: Iterable[Event] = ()) -> Event:
        """Run work that reads or writes the state of the planner."""
        self.last_plan = self.planning.submit(work, after)
        return self.last_plan

    def submit_plan_with_readback(
        self, work: Callable[[], Tensor], after: Iterable[Event] = ()
    ) -> tuple[Readback, Event]:
        """Run planning work and copy the tensor it returns to the host."""
        readback, self.last_plan = submit_with_readback(self.planning, work, after)
        return readback, self.last_plan

    def submit_planning_graph(self, work: Callable[[], None], after: Iterable[Event]) -> Event:
        """Replay the planning graph, which plans and moves rows, behind every move that was submitted before."""
        last, self._last_move = self._last_move, None
        if last is not None:
            after = (*after, last)
        self.last_plan = self.planning.submit(work, after, replays_graph=True)
        return self.last_plan

    def submit_move(self, work: Callable[[], None], after: Iterable[Event] = ()) -> Event:
        """Move rows outside the planning graph, behind the given events and every earlier move of this stream.

        `after` must contain the event of the plan that these moves belong to. The moves of earlier planning graphs run
        in the planning stream, so they are complete by that event too.
        """
        self._last_move = self.moving.submit(work, after)
        return self._last_move

    def wait_for_moves(self) -> None:
        """Block the host until every submitted move is done and nothing in the caller's stream uses the cache."""
        self.submit_move(_do_nothing, (record_event(self.device), self.last_plan)).synchronize()

    def keep_alive_until(self, kept: object, *events: Event) -> None:
        """Hold a reference to `kept` until these events are complete, because streams may read its memory until then.

        PyTorch would reuse the memory of a tensor as soon as Python drops it, although another stream still reads it.
        """
        self._kept_alive.append((events, kept))

    def free_completed(self) -> None:
        """Drop what no stream reads any more. Never waits."""
        while self._kept_alive and all_complete(self._kept_alive[0][0]):
            self._kept_alive.popleft()

    def __del__(self) -> None:
        """Wait for the streams, because PyTorch would reuse the memory that they still read or write."""
        if self.device.type == "cuda" and hasattr(self, "_kept_alive") and not sys.is_finalizing():
            for stream in (self.planning, self.moving):
                stream.submit(_do_nothing).synchronize()


def _do_nothing() -> None:
    pass
