"""The default strategy: know the ids of the batches to come, bring their rows in while an earlier batch trains."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from hotrows.batch import Batch
from hotrows.cache.policies.next_use import WINDOW_LIMIT
from hotrows.loop.scheduler import Pipeline
from hotrows.nn.base import Ahead, CachedModule
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.optim import RowOptimizer
from hotrows.strategies.base import Strategy
from hotrows.table import Table

B = TypeVar("B")


class LookaheadStrategy(Strategy):
    """Ours: a cache of any size, with the rows of the next batches moved while this one trains."""

    def make_bags(
        self, tables: Sequence[Table], dim: int, optimizer: RowOptimizer, device: torch.device, seed: int
    ) -> EmbeddingBagCollection:
        return EmbeddingBagCollection(
            tables,
            dim,
            cache=self.cache.size,
            optimizer=optimizer,
            policy=self.cache.policy,
            index=self.cache.index,
            device=device,
            seed=seed,
        )

    def batches(self, loader: Iterable[Batch], bags: EmbeddingBagCollection) -> Iterator[Batch]:
        return lookahead(loader, bags, self.cache.depth, self.cache.window)


def lookahead(
    loader: Iterable[B],
    bags: CachedModule,
    depth: int = 4,
    window: int = 32,
    ids: Callable[[B], Any] = lambda batch: batch.ids,  # type: ignore[attr-defined]
) -> Iterator[B]:
    """The batches of a loader, with the rows of each on the device when its turn comes.

    The result is that of a plain loop, bit for bit; leave it whenever you like. While `bags` is in eval mode, batches
    pass through as they are.

    Args:
        bags: the `EmbeddingBagCollection` or `EmbeddingBag` that will look the batches up.
        depth: how many batches ahead rows are moved. It shrinks by itself while the cache is too small for it.
        window: how many batches ahead ids are known to the policy, the current one included; at most 64, and more
            than `depth`.
        ids: picks what the bags will be called with from a batch; for an `EmbeddingBag` the input, or a tuple
            (input, offsets). Pass the same tensors to the bags.

    Example::

        for batch in hotrows.lookahead(loader, bags, ids=lambda b: b.ids):
            loss = loss_fn(model(batch.dense, bags(batch.ids)), batch.label)
            loss.backward()
    """
    if not isinstance(depth, int) or depth < 0:
        raise ValueError(f"depth is {depth!r}, it must be a whole number from 0 up")
    if not isinstance(window, int) or not 1 <= window <= WINDOW_LIMIT:
        raise ValueError(f"window is {window!r}, it must be a whole number from 1 to {WINDOW_LIMIT}")
    if not isinstance(bags, CachedModule):
        raise ValueError(f"bags are a {type(bags).__name__}, give an EmbeddingBagCollection or an EmbeddingBag")
    return _run(iter(loader), bags, depth, max(window, min(depth + 3, WINDOW_LIMIT)), ids)


def _run(batches: Iterator[B], bags: CachedModule, depth: int, window: int, ids: Callable[[B], Any]) -> Iterator[B]:
    if not bags.training:
        yield from batches
        return
    bags.close_lookahead()
    loop = _Loop(batches, bags, depth, window, ids)
    bags.open_lookahead(loop.close)
    coming: deque[_Coming[B]] = deque()
    more = True
    try:
        while True:
            while more and len(coming) < window:
                found = loop.read()
                if found is not None:
                    coming.append(found)
                more = found is not None and found.failed is None
            if not coming:
                return
            turn = coming.popleft()
            if turn.failed is not None:
                raise turn.failed
            loop.turn(turn.ahead)
            assert turn.batch is not None
            yield turn.batch
            loop.finish()
    finally:
        with suppress(ReferenceError):  # where all of it is collected as one cycle, there is nothing left to close
            bags.close_lookahead(loop.close)


@dataclass(slots=True)
class _Coming(Generic[B]):
    """A batch that was read ahead, or what went wrong: raised when its turn comes, so that those before it train."""

    batch: B | None = None
    ahead: Ahead | None = None
    failed: Exception | None = None


class _Loop(Generic[B]):
    """The pipelines of one loop over the batches."""

    def __init__(
        self, batches: Iterator[B], bags: CachedModule, depth: int, window: int, ids: Callable[[B], Any]
    ) -> None:
        self._batches = batches
        self._bags = bags
        self._ids = ids
        for group in bags.groups:
            group.open_ring(depth, window)
        self._pipelines = [Pipeline(group, depth) for group in bags.groups]
        self._closed = False

    def read(self) -> _Coming[B] | None:
        """The next batch that comes, announced; None behind the last one."""
        try:
            batch = next(self._batches)
            if self._closed or not self._bags.training:
                return _Coming(batch)
            ahead = self._bags.look_at(self._ids(batch))
            for pipeline, request in zip(self._pipelines, ahead.requests, strict=True):
                pipeline.announce(request)
            return _Coming(batch, ahead)
        except StopIteration:
            return None
        except Exception as error:
            return _Coming(failed=error)

    def turn(self, ahead: Ahead | None) -> None:
        """The next batch's turn; after the loop was closed its batches are planned on the spot."""
        if ahead is None or self._closed:
            return
        for i, pipeline in enumerate(self._pipelines):
            request, ahead.flights[i] = pipeline.turn()
            request.check()
        self._bags.set_current(ahead)

    def finish(self) -> None:
        if not self._closed:
            self._bags.set_current(None)
            for pipeline in self._pipelines:
                pipeline.finish()

    def close(self) -> None:
        self._closed = True
        self._bags.set_current(None)
        for pipeline in self._pipelines:
            pipeline.close()
