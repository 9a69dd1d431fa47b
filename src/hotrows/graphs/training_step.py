"""A training step as CUDA graphs: recorded once for each seat of the ring, replayed for every batch that comes to it.

At small batches a step is a hundred kernels of a few microseconds each, and launching them from Python takes longer
than running them. A recording is launched at once. Planning and moving have their own (`cache.ring`) and run beside it.
"""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hotrows.cache.row_cache import RowCache
from hotrows.dense.optimizer_override import optimizer_override
from hotrows.graphs.batch_pytree import LeafTypes, flatten_batch, unflatten_batch
from hotrows.graphs.capturable_optimizers import CannotCaptureError, DenseOptimizers, observe_optimizers
from hotrows.graphs.outputs import GraphOutputs
from hotrows.loop.ticket import Flight
from hotrows.nn.accumulation import CapturedUpdates
from hotrows.nn.base import Ahead, CachedModule
from hotrows.nn.lookups import on_device
from hotrows.ops.row_optimizer import coefficients
from hotrows.runtime.capture import GraphCapture
from hotrows.runtime.host_copy import HostCopy
from hotrows.runtime.streams import CudaEvent, Event, PooledEvent, current_stream, event_pool, record_event

B = TypeVar("B")
T = TypeVar("T")

logger = logging.getLogger("hotrows")

PRIORITY = -5  # of the step's kernels: where planning and training meet, training goes first
UPDATING = -1  # of those that update rows: what is left of the backward pass takes longer, and goes first
WARM_UP = 3  # steps that run as they stand: they compile kernels, and show which optimizers there are
SPARE_RECORDINGS = 64  # beyond one in eight steps: a step that must be recorded again and again is better left alone


def graphed(step: Callable[[B], T], bags: CachedModule) -> "GraphedStep[B, T]":
    """The same training step, replayed from CUDA graphs where that is possible, and as it stands where it is not.

    For batches that come from `hotrows.lookahead`::

        def step(batch):
            loss = loss_fn(model(batch.dense, bags(batch.ids)), batch.label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        step = hotrows.graphed(step, bags)
        for batch in hotrows.lookahead(loader, bags):
            loss = step(batch)

    It computes what the step computes, with the optimizer's formulas as PyTorch's fused implementation has them, in a
    kernel that fills the device. What the step does in Python alone (counting, printing) happens only while it is
    recorded; what it reads from Python (a loss scale) stays as it was then. Learning rates may change, and a step whose
    parameters or optimizers change otherwise is recorded again. The ids of the batch may go to `bags` only. `.reason`
    says why a step is not replayed, None if it is wherever the batch has one id per bag and the loop looks ahead.

    Args:
        step: takes a batch (tensors, or a tuple, dict or dataclass of them), calls `bags` once with the batch's ids,
            trains, and answers a tensor or several. The batch's other tensors are on the device when it gets them. It
            must zero the gradients itself; `param.grad` means nothing after a replay.
    """
    return GraphedStep(step, bags)


class GraphedStep(Generic[B, T]):
    def __init__(self, step: Callable[[B], T], bags: CachedModule) -> None:
        self._step = optimizer_override()(step)
        self._bags = bags
        self.reason: str | None = None
        self.num_replayed = 0
        self.num_as_it_stands = 0
        self._optimizers = DenseOptimizers()
        self._on_cuda = bags.device.type == "cuda"
        self._num_warm = 0
        self._num_recorded = 0
        self._recordings: dict[Any, _Recording] = {}
        self._recorder: GraphCapture | None = None
        self._streams: _Streams | None = None
        reasons = (group.reason_against_ring() for group in bags.groups)
        self.reason = next((reason for reason in reasons if reason is not None), None)

    def __call__(self, batch: B) -> T:
        if not self._on_cuda:
            self.num_as_it_stands += 1
            return self._step(batch)
        leaves, form = flatten_batch(batch)
        ahead = None if self.reason else self._bags.current
        seats = None if ahead is None else self._seats(ahead, leaves)
        if ahead is None or seats is None:
            return self._as_it_stands(leaves, form)  # which plans on the spot what is not the batch's turn
        stream = current_stream(self._bags.device)
        if self._streams is not None:
            self._streams.follow(stream)  # with new learning rates, and with the replay
        if self._num_warm < WARM_UP or self._have_changed():
            return self._warm_up(leaves, form)
        recording = self._recording_for(leaves, form, ahead.flights, seats)
        if recording is None:
            return self._as_it_stands(leaves, form)
        self.num_replayed += 1
        return recording.replay(leaves, ahead.flights, stream)  # type: ignore[no-any-return]

    def _seats(self, ahead: Ahead, leaves: list[Any]) -> tuple[int, ...] | None:
        """Those of the current batch; None where it was not planned in the ring for training, or is not this one."""
        bags = self._bags
        if not bags.training or not torch.is_grad_enabled() or bags.is_accumulating or not ahead.is_of(leaves):
            return None
        seats: tuple[int, ...] = ()
        for flight in ahead.flights:
            if flight is None or flight.seat is None:
                return None
            seats += (flight.seat,)
        return seats

    def _have_changed(self) -> bool:
        """Whether the optimizers have. One step then runs as it stands: it may make state, which no recording must."""
        if self._optimizers.are_as_noted():
            return False
        self._recordings.clear()
        self._recorder = None  # PyTorch gives up the memory of recordings with the last of them
        try:
            self._count_recording()
        except CannotCaptureError as error:
            self._give_up(str(error))
        return True

    def _count_recording(self) -> None:
        self._num_recorded += 1
        if self._num_recorded > self.num_replayed // 8 + SPARE_RECORDINGS:
            raise CannotCaptureError("its batches, parameters or optimizers change from call to call")

    def _recording_for(
        self, leaves: list[Any], form: Any, flights: list[Flight | None], seats: tuple[int, ...]
    ) -> "_Recording | None":
        recording = self._recordings.get(seats)
        if recording is None or not recording.suits(leaves, form):
            try:
                recording = self._recordings[seats] = self._record(leaves, form, flights)
            except Exception as error:
                self._optimizers.zero_grad()  # of a recording, never computed
                kind = "" if isinstance(error, CannotCaptureError) else f"recording it failed: {type(error).__name__}: "
                self._give_up(f"{kind}{error}")
                return None
        return recording

    def _as_it_stands(self, leaves: list[Any], form: Any) -> T:
        """The step itself, on the batch as a recording sees it: on the device, but for its ids."""
        self.num_as_it_stands += 1
        ids = self._bags.current_ids()
        return self._step(unflatten_batch([_on_device(leaf, ids, self._bags.device) for leaf in leaves], form))

    def _warm_up(self, leaves: list[Any], form: Any) -> T:
        with observe_optimizers() as (optimizers, waits):
            answer = self._as_it_stands(leaves, form)
        self._num_warm += 1
        try:
            if self._num_warm == WARM_UP and waits:
                raise CannotCaptureError(f"it waits for the device ({waits[0]}), as .item() and printing a tensor do")
            self._optimizers.found(optimizers)
            self._optimizers.note()
        except CannotCaptureError as error:
            self._give_up(str(error))
        # an autograd graph kept alive would tie the recording to the stream of this step
        detached: T = pytree.tree_map_only(Tensor, Tensor.detach, answer)
        return detached

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._recordings.clear()
        logger.warning("training steps are not replayed from CUDA graphs: %s", reason)

    def _record(self, leaves: list[Any], form: Any, flights: list[Flight | None]) -> "_Recording":
        if self._recorder is None:
            self._recorder = GraphCapture(self._bags.device, PRIORITY)
        if self._streams is None:
            self._streams = _Streams(self._bags.device)
        self._count_recording()
        self._optimizers.zero_grad()
        self._optimizers.note()
        rates, row_rates = self._optimizers.rate_versions(), _row_rates(self._bags)
        recording = _Recording(self._step, self._bags, leaves, form, flights, self._recorder, self._streams)
        if self._optimizers.rate_versions() != rates or _row_rates(self._bags) != row_rates:
            raise CannotCaptureError("it changes learning rates: step the scheduler outside of it")
        return recording


class _Streams:
    """Where inputs are copied, and in a recording rows updated. Replayed is in the caller's stream."""

    def __init__(self, device: torch.device) -> None:
        self.copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.updating = torch.cuda.Stream(device, UPDATING)  # type: ignore[no-untyped-call]
        self._events = event_pool(device)
        self._callers: torch.cuda.Stream | None = None
        self._last: PooledEvent | None = None

    def follow(self, stream: torch.cuda.Stream) -> None:
        """Let a stream wait for the last replay, if that was in another one: recordings share their memory."""
        if stream is not self._callers and self._last is not None:
            self._last.wait(stream)

    def replayed(self, stream: torch.cuda.Stream) -> PooledEvent:
        """The point behind what was replayed in a stream just now."""
        self._callers, self._last = stream, PooledEvent(stream, self._events)
        return self._last


class _Recording:
    """The step on fixed memory: that of one seat in each group's ring, and copies of the batch's other tensors."""

    def __init__(
        self,
        step: Callable[[Any], Any],
        bags: CachedModule,
        leaves: list[Any],
        form: Any,
        flights: list[Flight | None],
        recorder: GraphCapture,
        streams: _Streams,
    ) -> None:
        self._device = bags.device
        self._streams = streams
        self._form = form
        self._kinds = LeafTypes(leaves)
        ids = bags.current_ids()
        is_ids = [any(leaf is tensor for tensor in ids) for leaf in leaves]
        inputs = [
            _stand_in(leaf, stands_in, bags.device) if isinstance(leaf, Tensor) else leaf
            for leaf, stands_in in zip(leaves, is_ids, strict=True)
        ]
        self._brought = [
            (place, HostCopy(tensor))
            for place, (tensor, stands_in) in enumerate(zip(inputs, is_ids, strict=True))
            if isinstance(tensor, Tensor) and not stands_in
        ]
        self._parts = [_Part(group, bags.device) for group in bags.groups]
        self._answers = GraphOutputs()
        self._kept: list[Tensor] = []
        self._copied = CudaEvent(streams.copying)  # nobody else has it
        stand_ins = [leaf for leaf, stands_in in zip(inputs, is_ids, strict=True) if stands_in]
        with recorder.capture() as self._graph:
            updates = [
                CapturedUpdates(part.group, part.on_device, part.pinned, streams.updating) for part in self._parts
            ]
            planned = [flight for flight in flights if flight is not None]
            try:
                with bags.recorded(list(zip(planned, updates, strict=True)), stand_ins):
                    answer = step(unflatten_batch(inputs, form))
                self._answers.record(answer)  # beside the last updates
            except BaseException:
                with suppress(RuntimeError):  # what failed is what matters
                    _join(updates)
                raise
            _join(updates)
        if any(each.num_passes != (1, 1) for each in updates):
            raise CannotCaptureError("a step must call the bags once, and one backward pass must come to them")
        self._done: Event = record_event(bags.device)  # the memory of the inputs is free by then

    def __del__(self) -> None:
        """A graph that is still queued reads pinned memory, which must not be handed out again."""
        if hasattr(self, "_done") and not sys.is_finalizing():
            self._done.synchronize()
            self._copied.synchronize()  # also what was not replayed

    def suits(self, leaves: list[Any], form: Any) -> bool:
        """Whether this is a recording of the step on such a batch, with memory that is still there."""
        if form != self._form or not self._kinds.are_of(leaves):
            return False
        for part in self._parts:  # noqa: SIM110  (takes longer)
            if part.memory != _memory(part.group):
                return False
        return True

    def replay(self, leaves: list[Any], flights: list[Flight | None], stream: torch.cuda.Stream) -> Any:
        """Train on a batch, in the current stream of the bags' device."""
        if torch._C._cuda_getDevice() != self._device.index:
            with torch.cuda.device(self._device):
                return self.replay(leaves, flights, stream)
        # What the host writes next, the last replay has read: it was of a batch that had this seat before, and the
        # plan that took the seat waited for it. Unless it was of this batch.
        self._done.synchronize()
        answer = self._answers.next(stream)
        on_device = self._bring(leaves, stream)
        if on_device:
            owns, given = zip(*on_device, strict=True)
            torch._foreach_copy_(owns, given)
        for flight, part in zip(flights, self._parts, strict=True):
            assert flight is not None
            part.group.acquire(flight)
            part.next_step()
        self._graph.replay()
        self._done = self._streams.replayed(stream)
        for flight, part in zip(flights, self._parts, strict=True):
            assert flight is not None
            part.group.note_use(flight, self._done)
        return answer

    def _bring(self, leaves: list[Any], stream: torch.cuda.Stream) -> list[tuple[Tensor, Tensor]]:
        """Copy the batch from the host to where the recording looks for it, while earlier batches train.

        The stream waits for that.

        Returns:
            What the caller has on the device already, behind where it must go.
        """
        on_device: list[tuple[Tensor, Tensor]] = []
        kept: list[Tensor] = []
        self._kept = kept  # until the next replay, which waits for this one
        for place, own in self._brought:
            leaf: Tensor = leaves[place]
            if leaf.is_cuda:
                on_device.append((own.target, leaf))
            else:
                kept += (leaf,)
                own.copy(leaf, self._streams.copying)
        if kept:
            self._copied.record_again(self._streams.copying)
            self._copied.wait(stream)
        return on_device


def _join(updates: list[CapturedUpdates]) -> None:
    """A recording does not end, not even that of a step that failed, while a branch of it is open."""
    for each in updates:
        each.join()


class _Part:
    """A group's part of a recording: the memory it points to, the numbers of the row optimizer on their way to it."""

    def __init__(self, group: RowCache, device: torch.device) -> None:
        assert group.optimizer is not None
        self.group = group
        self.memory = _memory(group)
        self._rule = group.optimizer.rule
        count = len(coefficients(self._rule, group.optimizer.hyper(1)))
        self.pinned = torch.zeros(count, dtype=torch.float32, pin_memory=True)
        self.on_device = torch.zeros(count, dtype=torch.float32, device=device)
        self._write = self.pinned.numpy()
        self._hyper: tuple[float, ...] | None = None  # of which the numbers are there

    def next_step(self) -> None:
        hyper = self.group.next_step()
        if hyper != self._hyper:
            # the recording was replayed last for a batch whose seat has been taken again, so it has read the old ones
            self._write[:] = coefficients(self._rule, hyper)
            self._hyper = hyper


def _memory(group: RowCache) -> tuple[int, int]:
    """What a recording points to: the ring, and the cache, which an overflow can make larger."""
    ring = group.seating.ring
    return -1 if ring is None else ring.serial, group.cache.data_ptr()


def _row_rates(bags: CachedModule) -> list[Any]:
    return [] if bags.optimizer is None else [dict(group, params=None) for group in bags.optimizer.param_groups]


def _stand_in(leaf: Tensor, is_ids: bool, device: torch.device) -> Tensor:
    """Ids are in the plan already: the tensor that stands for them has a shape and nothing else, so using it fails."""
    if is_ids:
        return torch.empty_like(leaf, device="meta")
    return torch.empty(leaf.shape, dtype=leaf.dtype, device=device)


def _on_device(leaf: Any, ids: list[Tensor], device: torch.device) -> Any:
    if not isinstance(leaf, Tensor) or any(leaf is tensor for tensor in ids):
        return leaf
    return on_device(leaf, device)
