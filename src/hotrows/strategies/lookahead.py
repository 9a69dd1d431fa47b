"""The default strategy: know the ids of the batches to come, bring their rows in while an earlier batch trains."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from hotrows.cache.pipeline import Pipeline
from hotrows.cache.policies.upcoming import WINDOW_LIMIT
from hotrows.nn.module import Ahead, CachedModule

B = TypeVar("B")


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
    return _run(iter(loader), bags, depth, max(window, min(depth + 1, WINDOW_LIMIT)), ids)


def _run(batches: Iterator[B], bags: CachedModule, depth: int, window: int, ids: Callable[[B], Any]) -> Iterator[B]:
    bags.close_lookahead()
    pipelines = [Pipeline(group, depth) for group in bags.groups]
    coming: deque[tuple[B, Ahead | None, Exception | None]] = deque()
    more = True

    def read() -> bool:
        """Take one more batch from the loader; what is wrong with it is raised when its turn comes."""
        try:
            batch = next(batches)
        except StopIteration:
            return False
        ahead: Ahead | None = None
        failed: Exception | None = None
        if bags.training:
            try:
                ahead = bags.look_at(ids(batch))
            except Exception as error:
                failed = error
        if ahead is not None:
            for pipeline, request in zip(pipelines, ahead.requests, strict=True):
                pipeline.announce(request)
        coming.append((batch, ahead, failed))
        return failed is None

    def close() -> None:
        bags.set_current(None)
        for pipeline in pipelines:
            pipeline.close()

    bags.open_lookahead(close)
    try:
        while True:
            while more and len(coming) < window:
                more = read()
            if not coming:
                return
            batch, ahead, failed = coming.popleft()
            if failed is not None:
                raise failed
            if ahead is not None:
                for i, pipeline in enumerate(pipelines):
                    request, ahead.flights[i] = pipeline.turn()
                    request.check()
            bags.set_current(ahead)
            yield batch
            bags.set_current(None)
            for pipeline in pipelines:
                pipeline.finish()
    finally:
        bags.close_lookahead(close)
