"""How many batches to plan ahead: fewer where the cache has no room for them, and one more now and then.

This is pure Python without tensors. The loop reports whether each plan fitted, and asks how far ahead to plan.

Whether a plan fits is known only some iterations after it was queued. If it does not fit, batches behind it may have
been planned meanwhile and have taken its room. So the depth shrinks below the rejected batch. From time to time one
batch more is tried as a probe, with a back-off that doubles. While a probe is unresolved, nothing is planned behind it:
a later batch could take its room. The probe would then be planned again after that batch, which, with the older plan of
the two, would stay in flight longest and protect every slot used since that plan.

Besides the batches to come, the batch that has just trained can stay in flight for one more iteration, so that the next
plan need not wait for it. Where there is no room for that, it is released at once.
"""

from enum import Enum

READBACK_LAG = 2  # iterations after which the host reads the counts of a plan made in the planning graph
# Iterations until the next probe. The back-off of DEPTH probes doubles each time the depth shrinks, and that of
# RETAIN_LAST probes each time one of them fails.
BACK_OFF = 32
MOST_BACK_OFF = 1024


class Probe(Enum):
    """What a plan tries out."""

    DEPTH = "one batch more is planned ahead"
    RETAIN_LAST = "the batch before the current one stays in flight"


class DepthController:
    """Decides how many batches are planned ahead, and whether the batch that has just trained stays in flight.

    Args:
        depth: how many batches after the current one should have their rows in the cache or on the way there.
    """

    def __init__(self, depth: int) -> None:
        self._full = depth + READBACK_LAG
        self.depth = self._full  # batches after the current one that may be planned
        self.retains_last = True  # the batch that has just trained stays in flight for one iteration
        self._known_depth = self._full  # the largest depth known to have room; at first, the full depth counts as known
        self._known_retains_last = True
        self._iteration = 0
        self._depth_changed = self._last_changed = 0  # the iterations in which `depth` and `retains_last` last changed
        self._depth_back_off = self._last_back_off = BACK_OFF

    def begin_iteration(self) -> None:
        self._iteration += 1

    def start_probe(self, is_probing: bool) -> None:
        """Try to plan one batch more, or to retain the batch that has just trained. One probe at a time.

        Nothing is tried before the back-off is over.

        Args:
            is_probing: the plan of an earlier probe is not resolved yet.
        """
        if is_probing or (self.depth == self._full and self.retains_last):
            return
        if self.depth < self._full:
            # With little planned ahead there is more to win than a rejected plan costs, so probe sooner.
            back_off = min(self._depth_back_off, BACK_OFF // 2 * (self.depth + 1))
            if self.depth == self._known_depth and self._iteration - self._depth_changed >= back_off:
                self.depth, self._depth_changed = self.depth + 1, self._iteration
                return
        if not self.retains_last and self.depth > 0 and self._iteration - self._last_changed >= self._last_back_off:
            self.retains_last, self._last_changed = True, self._iteration

    def probe_of(self, distance: int, beside_last: bool) -> Probe | None:
        """What planning a batch now tries out. None if it tries out nothing (it may be rejected all the same).

        Args:
            distance: how many iterations before its own: 0 for the batch whose iteration it is.
            beside_last: the batch before the current one is in flight.
        """
        if self._known_depth < distance <= self.depth:
            return Probe.DEPTH
        if beside_last and not self._known_retains_last and distance >= self.depth:
            return Probe.RETAIN_LAST
        return None

    def readback_lag(self, probe: Probe | None, distance: int) -> int:
        """Iterations after which to read the counts of a plan of the planning graph.

        A probe is looked at sooner, so that the batch can still be planned again before its iteration.
        """
        return READBACK_LAG if probe is None else max(1, min(READBACK_LAG, distance - 1))

    def fitted(self, probe: Probe | None, distance: int) -> None:
        """A plan fitted."""
        if probe is Probe.DEPTH:
            self._known_depth = max(self._known_depth, min(distance, self.depth))
        elif probe is Probe.RETAIN_LAST:
            self._known_retains_last = self.retains_last

    def rejected(self, probe: Probe | None, distance: int, beside_last: bool) -> None:
        """A plan had no room. What was probed is given up; otherwise the depth shrinks below the rejected batch.

        If the rejected batch is the current or the next one, and the batch that has just trained was in flight beside
        it, that batch is assumed to have taken its room. It is then no longer retained, and the depth shrinks only to
        the distance of the rejected batch.
        """
        # Near ahead, only the rejected batch is given up. Farther ahead, so is the batch before it, because it takes
        # room that nearer batches may need.
        depth = distance - (1 if distance <= READBACK_LAG + 1 else 2)
        if probe is Probe.DEPTH:
            depth = min(self._known_depth, distance - 1)
        elif probe is Probe.RETAIN_LAST:
            depth = self.depth
            self.stop_retaining_last()
        elif distance <= 1 and beside_last:
            depth = distance
            self.stop_retaining_last()
        if depth < self.depth:
            self.depth, self._depth_changed = max(0, depth), self._iteration
            self._depth_back_off = min(2 * self._depth_back_off, MOST_BACK_OFF)
        self._known_depth = min(self._known_depth, self.depth)

    def stop_retaining_last(self) -> None:
        if self.retains_last:
            # If retaining the batch was only a probe, that probe has failed. Otherwise retaining had worked until now,
            # and the rejected batch was larger than those before, so the back-off begins anew.
            failed_probe = not self._known_retains_last
            self._last_back_off = min(2 * self._last_back_off, MOST_BACK_OFF) if failed_probe else BACK_OFF
            self.retains_last, self._last_changed = False, self._iteration
        self._known_retains_last = False
