"""One capture of a training step: its CUDA graph, and the fixed memory that the graph reads and writes."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from hotrows.graphs.batch_pytree import LeafTypes, unflatten_batch
from hotrows.graphs.capturable_optimizers import CannotCaptureError
from hotrows.graphs.outputs import GraphOutputs
from hotrows.loop.scheduler import Scheduler
from hotrows.loop.ticket import BatchTicket
from hotrows.nn.accumulation import CapturedUpdates
from hotrows.nn.base import CachedModule
from hotrows.ops.row_optimizer import coefficients
from hotrows.runtime import cuda_private
from hotrows.runtime.capture import GraphCapture
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.runtime.host_copy import HostCopy
from hotrows.runtime.streams import CudaEvent, Event, PooledEvent, event_pool, record_event

# Priority of the kernels that update rows. The rest of the backward pass takes longer, so its kernels go first.
UPDATE_PRIORITY = -1


class StepStreams:
    """The streams that a step uses beside the caller's stream. Its graph is replayed in the caller's stream.

    Attributes:
        copying: the stream in which inputs are copied to the device.
        updating: in a captured step, the branch of the graph that updates rows.
    """

    def __init__(self, device: torch.device) -> None:
        self.copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.updating = torch.cuda.Stream(device, UPDATE_PRIORITY)  # type: ignore[no-untyped-call]
        self._events = event_pool(device)
        self._last_stream: torch.cuda.Stream | None = None
        self._last_replay: PooledEvent | None = None

    def follow(self, stream: torch.cuda.Stream) -> None:
        """Make a stream wait for the last replay if that ran in another stream, because all graphs share memory."""
        if stream is not self._last_stream and self._last_replay is not None:
            self._last_replay.wait(stream)

    def note_replay(self, stream: torch.cuda.Stream) -> PooledEvent:
        """Record an event behind the replay that was just queued in a stream."""
        self._last_stream, self._last_replay = stream, PooledEvent(stream, self._events)
        return self._last_replay


class CapturedStep:
    """The step on fixed memory: one plan buffer of each cache, and copies of the batch's other tensors.

    Args:
        leaves, structure: a batch, as `flatten_batch` returns it.
        tickets: the tickets of this batch, one for each cache. Their plans are in plan buffers.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        bags: CachedModule,
        leaves: list[Any],
        structure: Any,
        tickets: list[BatchTicket],
        capture: GraphCapture,
        streams: StepStreams,
    ) -> None:
        self._device = bags.device
        self._streams = streams
        self._structure = structure
        self._types = LeafTypes(leaves)
        ids = bags.current_ids()
        is_ids = [any(leaf is tensor for tensor in ids) for leaf in leaves]
        inputs = [
            _input(leaf, is_id, bags.device) if isinstance(leaf, Tensor) else leaf
            for leaf, is_id in zip(leaves, is_ids, strict=True)
        ]
        self._copies = [
            (position, HostCopy(tensor))
            for position, (tensor, is_id) in enumerate(zip(inputs, is_ids, strict=True))
            if isinstance(tensor, Tensor) and not is_id
        ]
        self._parts = [_CachePart(scheduler, bags.device) for scheduler in bags.schedulers]
        self._outputs = GraphOutputs(bags.device)
        self._sources: list[Tensor] = []
        self._copied = CudaEvent(streams.copying)  # nobody else holds it, so it can be recorded again
        stand_ins = [leaf for leaf, is_id in zip(inputs, is_ids, strict=True) if is_id]
        with capture.capture() as self._graph:
            updates = self._run(step, bags, inputs, stand_ins, tickets)
        if any(each.num_passes != (1, 1) for each in updates):
            raise CannotCaptureError("a step must call the bags once, and one backward pass must reach them")
        self._done: Event = record_event(bags.device)  # recorded after the last use of the input buffers

    def _run(
        self,
        step: Callable[[Any], Any],
        bags: CachedModule,
        inputs: list[Any],
        stand_ins: list[Tensor],
        tickets: list[BatchTicket],
    ) -> list[CapturedUpdates]:
        """Run the step while it is captured. Returns the row updates that it has queued, one object for each cache."""
        updates = [
            CapturedUpdates(part.scheduler, part.on_device, part.pinned, self._streams.updating)
            for part in self._parts
        ]  # fmt: skip
        try:
            with bags.captured(list(zip(tickets, updates, strict=True)), stand_ins):
                output = step(unflatten_batch(inputs, self._structure))
            self._outputs.capture(output)  # before `_join`, so that these copies run beside the last updates
        except BaseException:
            with suppress(RuntimeError):  # the first error says what is wrong
                _join(updates)
            raise
        _join(updates)
        return updates

    def __del__(self) -> None:
        """Wait for the device: PyTorch must not reuse the pinned memory while a queued graph still reads it."""
        if hasattr(self, "_done") and not sys.is_finalizing():
            self._done.synchronize()
            self._copied.synchronize()  # also for inputs that were copied for a replay that failed

    def accepts(self, leaves: list[Any], structure: Any) -> bool:
        """True if the graph can be replayed for this batch.

        The batch must have the structure, shapes, dtypes and constants of the captured one, and the memory that the
        graph points to must not have been replaced.
        """
        if structure != self._structure or not self._types.match(leaves):
            return False
        for part in self._parts:  # noqa: SIM110  (a generator is slower)
            if part.memory != _memory(part.scheduler):
                return False
        return True

    def replay(self, leaves: list[Any], tickets: list[BatchTicket], stream: torch.cuda.Stream) -> Any:
        """Train on a batch whose plans are in the captured plan buffers.

        Args:
            stream: the current stream of the bags' device.
        """
        if cuda_private.current_device_index() != self._device.index:
            with torch.cuda.device(self._device):
                return self.replay(leaves, tickets, stream)
        # The host overwrites what the last replay of this graph reads, so that replay must be complete. Usually it is:
        # it trained the batch that had these plan buffers before, the present plan was made after that, and the host
        # has read the plan's counts. The host waits only if a batch is trained on twice.
        self._done.synchronize()
        output = self._outputs.next(stream)
        on_device = self._copy_inputs(leaves, stream)
        if on_device:
            cuda_private.copy_all([target for target, _ in on_device], [source for _, source in on_device])
        for ticket, part in zip(tickets, self._parts, strict=True):
            part.scheduler.acquire(ticket)
        with defer_sigint():  # Ctrl-C must not come between counting the step, replaying it and noting its event
            for part in self._parts:
                part.next_step()
            self._graph.replay()
            self._done = self._streams.note_replay(stream)
            for ticket, part in zip(tickets, self._parts, strict=True):
                part.scheduler.note_use(ticket, self._done)
        return output

    def _copy_inputs(self, leaves: list[Any], stream: torch.cuda.Stream) -> list[tuple[Tensor, Tensor]]:
        """Copy inputs from the host to the graph's memory while earlier batches train. `stream` waits for the copies.

        Returns:
            The inputs that are on the device already and are still to be copied, as pairs of target and source.
        """
        on_device: list[tuple[Tensor, Tensor]] = []
        sources: list[Tensor] = []
        self._sources = sources  # kept alive until the next replay, which waits for this one
        for position, copy in self._copies:
            leaf: Tensor = leaves[position]
            if leaf.is_cuda:
                on_device.append((copy.target, leaf))
            else:
                sources += (leaf,)
                copy.copy(leaf, self._streams.copying)
        if sources:
            self._copied.record_again(self._streams.copying)
            self._copied.wait(stream)
        return on_device


def _join(updates: Sequence[CapturedUpdates]) -> None:
    """Join every branch of the graph. A capture cannot end before that, not even the capture of a step that failed."""
    for each in updates:
        each.join()


class _CachePart:
    """One cache's part of a captured step: the memory that the graph points to, and the optimizer's coefficients."""

    def __init__(self, scheduler: Scheduler, device: torch.device) -> None:
        optimizer = scheduler.updater.optimizer
        assert optimizer is not None
        self.scheduler = scheduler
        self.memory = _memory(scheduler)
        self._optimizer = optimizer
        count = len(coefficients(optimizer.rule, optimizer.hyper(1)))
        self.pinned = torch.zeros(count, dtype=torch.float32, pin_memory=device.type == "cuda")
        self.on_device = torch.zeros(count, dtype=torch.float32, device=device)
        self._write = self.pinned.numpy()
        self._hyper: tuple[float, ...] | None = None  # the hyperparameters whose coefficients are in `pinned` now

    def next_step(self) -> None:
        """Count one optimizer step, and write its hyperparameters to where the next replay reads them.

        The replayed batch has no bad ids: they were checked when its iteration began. An earlier batch, planned in its
        own iteration, may turn out to have some: then its step is first taken back. The host waits to know this only
        if the hyperparameters depend on the step count.
        """
        self.scheduler.bad_ids.uncount_bad_steps(wait=self._optimizer.depends_on_step)
        hyper = self.scheduler.updater.next_step()
        if hyper != self._hyper:
            # The graph's last replay has read the old coefficients: `replay` has waited for it.
            self._write[:] = coefficients(self._optimizer.rule, hyper)
            self._hyper = hyper


def _memory(scheduler: Scheduler) -> tuple[int, int]:
    """What a graph points to: the buffers of the planning graph, and the records, which an overflow can make larger."""
    graph = scheduler.planning_graph
    return -1 if graph is None else graph.serial, scheduler.cache.records.data_ptr()


def _input(leaf: Tensor, is_ids: bool, device: torch.device) -> Tensor:
    """Memory for an input of the step.

    Ids are in the plan already. The tensor that stands for them has a shape and no memory, so a step that uses ids for
    anything but calling the bags fails.
    """
    if is_ids:
        return torch.empty_like(leaf, device="meta")
    return torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
