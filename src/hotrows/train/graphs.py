"""A training step as CUDA graphs: recorded once for each seat of the ring, replayed for every batch that comes to it.

At small batches a step is a hundred kernels of a few microseconds each, and launching them from Python takes longer
than running them. A recording is launched at once. Planning and moving have their own (`cache.ring`) and run beside it.
"""

import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from hotrows.cache.group import Flight, RowGroup
from hotrows.cache.lanes import Mark, caller_mark, current_stream
from hotrows.cache.recording import Recorder
from hotrows.nn.lookups import on_device
from hotrows.nn.module import CachedModule
from hotrows.nn.updates import RecordedUpdates
from hotrows.ops.row_update import numbers
from hotrows.optim import RowOptimizer

B = TypeVar("B")
T = TypeVar("T")

logger = logging.getLogger("hotrows")

PRIORITY = -5  # of the stream that replays the step: where planning and training meet, training goes first
WARM_UP = 3  # steps that run as they stand: they compile kernels, and show which optimizers there are


class CannotRecordError(Exception):
    """Says why a step stays as it is."""


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

    The result is the same, bit for bit. What the step does in Python alone (counting, printing) happens only while it
    is recorded; what it reads from Python (a loss scale) stays as it was then. Learning rates may change: of rows
    always, of SGD, Adam and AdamW because their `lr` becomes a tensor. The ids of the batch may go to `bags` only.
    `.reason` says why a step is not replayed, None if it is.

    Args:
        step: takes a batch (tensors, or a tuple, dict or dataclass of them), calls `bags` once, trains, and answers a
            tensor or several. It must zero the gradients itself.
    """
    return GraphedStep(step, bags)


class GraphedStep(Generic[B, T]):
    def __init__(self, step: Callable[[B], T], bags: CachedModule) -> None:
        self._step = step
        self._bags = bags
        self.reason: str | None = None
        self.num_replayed = 0
        self.num_as_it_stands = 0
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._num_warm = 0
        self._recordings: dict[Any, _Recording] = {}
        self._recorder: Recorder | None = None
        self._copying: Any = None
        self._training: Any = None
        if bags.device.type != "cuda":
            self.reason = f"the bags are on {bags.device}"

    def __call__(self, batch: B) -> T:
        flights = None if self.reason else self._flights()
        if flights is None:
            return self._as_it_stands(batch)
        if self._num_warm < WARM_UP:
            return self._warm_up(batch)
        leaves, form = _take_apart(batch)
        seats = tuple([flight.seat for flight in flights])
        recording = self._recordings.get(seats)
        if recording is None or not recording.suits(leaves, form):
            try:
                recording = self._recordings[seats] = self._record(leaves, form, flights)
            except Exception as error:
                self._give_up(f"recording it failed: {type(error).__name__}: {error}")
                return self._as_it_stands(batch)
        self.num_replayed += 1
        return recording.replay(leaves, flights)  # type: ignore[no-any-return]

    def _flights(self) -> list[Flight] | None:
        """The plans of the current batch, None where one of them was not made in the ring."""
        ahead = self._bags.current
        if ahead is None or not self._bags.training or not torch.is_grad_enabled():
            return None
        flights = [flight for flight in ahead.flights if flight is not None and flight.seat is not None]
        return flights if len(flights) == len(ahead.flights) else None

    def _as_it_stands(self, batch: B) -> T:
        self.num_as_it_stands += 1
        return self._step(batch)

    def _warm_up(self, batch: B) -> T:
        leaves, form = _take_apart(batch)
        ids = self._bags.current_ids()
        there = [_on_device(leaf, ids, self._bags.device) for leaf in leaves]  # as it will be in a recording
        with _watching() as (optimizers, waits):
            answer = self._as_it_stands(_put_together(there, form))
        self._num_warm += 1
        if self._num_warm == WARM_UP and waits:
            self._give_up(f"it waits for the device ({waits[0]}), as .item() and printing a tensor do")
        new = {key: optimizer for key, optimizer in optimizers.items() if key not in self._optimizers}
        self._optimizers.update(new)
        try:
            for optimizer in new.values():
                _make_recordable(optimizer)
        except CannotRecordError as error:
            self._give_up(str(error))
        return answer

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._recordings.clear()
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=True)  # of a recording, never computed
        logger.warning("training steps are not replayed from CUDA graphs: %s", reason)

    def _record(self, leaves: list[Any], form: Any, flights: list[Flight]) -> "_Recording":
        if self._recorder is None:
            self._recorder = Recorder(self._bags.device)
            self._copying = torch.cuda.Stream(self._bags.device)  # type: ignore[no-untyped-call]
            self._training = torch.cuda.Stream(self._bags.device, PRIORITY)  # type: ignore[no-untyped-call]
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        return _Recording(self._step, self._bags, leaves, form, flights, self._recorder, self._copying, self._training)


class _Recording:
    """The step on fixed memory: that of one seat in each group's ring, and copies of the batch's other tensors."""

    def __init__(
        self,
        step: Callable[[Any], Any],
        bags: CachedModule,
        leaves: list[Any],
        form: Any,
        flights: list[Flight],
        recorder: Recorder,
        copying: torch.cuda.Stream,
        training: torch.cuda.Stream,
    ) -> None:
        self._bags = bags
        self._copying = copying
        self._training = training
        self._form = form
        self.rings = _rings(bags)
        ids = bags.current_ids()
        self._is_ids = [any(leaf is tensor for tensor in ids) for leaf in leaves]
        self._inputs = [
            _stand_in(leaf, is_ids, bags.device) if isinstance(leaf, Tensor) else leaf
            for leaf, is_ids in zip(leaves, self._is_ids, strict=True)
        ]
        self._rates = [_Rates(group, bags.device) for group in bags.groups]
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done: Mark | None = None
        parts = [
            (flight, RecordedUpdates(rates.group, rates.on_device))
            for flight, rates in zip(flights, self._rates, strict=True)
        ]
        with bags.recorded(parts), recorder.recording() as self._graph:
            for rates in self._rates:
                rates.on_device.copy_(rates.pinned, non_blocking=True)
            answer = step(_put_together(self._inputs, form))
        self._answer, self._answer_form = pytree.tree_flatten(answer)

    def suits(self, leaves: list[Any], form: Any) -> bool:
        """Whether this is a recording of the step on such a batch, with memory that is still there."""
        if form != self._form or self.rings != _rings(self._bags) or len(leaves) != len(self._inputs):
            return False
        return all(
            leaf.shape == own.shape and leaf.dtype == own.dtype if isinstance(own, Tensor) else leaf == own
            for leaf, own in zip(leaves, self._inputs, strict=True)
        )

    def replay(self, leaves: list[Any], flights: list[Flight]) -> Any:
        device = self._bags.device
        before = caller_mark(device)
        with torch.cuda.stream(self._training):
            before.hold_caller()
            self._bring(leaves)
            for flight, rates in zip(flights, self._rates, strict=True):
                rates.group.acquire(flight)
                rates.next_step()
            self._graph.replay()
            self._done = caller_mark(device)
        self._done.hold_caller()
        for flight, rates in zip(flights, self._rates, strict=True):
            rates.group.note_use(flight, self._done)
        answer = [part.detach().clone() if isinstance(part, Tensor) else part for part in self._answer]
        return pytree.tree_unflatten(answer, self._answer_form)

    def _bring(self, leaves: list[Any]) -> None:
        """Copy the batch to where the recording looks for it; from the host while earlier batches train."""
        from_host = False
        here: tuple[list[Tensor], list[Tensor]] = ([], [])
        for leaf, place, is_ids in zip(leaves, self._inputs, self._is_ids, strict=True):
            if is_ids or not isinstance(leaf, Tensor):
                continue
            if leaf.is_cuda:
                here[0].append(place)
                here[1].append(leaf)
                continue
            with torch.cuda.stream(self._copying):
                if not from_host and self._done is not None:
                    self._done.hold_caller()
                from_host = True
                place.copy_(leaf if leaf.is_pinned() else leaf.pin_memory(), non_blocking=True)
        if here[0]:
            torch._foreach_copy_(*here)
        if from_host:
            self._copied.record(self._copying)
            current_stream(self._bags.device).wait_event(self._copied)


class _Rates:
    """The numbers of a group's row optimizer, on their way to a recording."""

    def __init__(self, group: RowGroup, device: torch.device) -> None:
        assert group.optimizer is not None
        self.group = group
        self._rule = group.optimizer.rule
        count = len(numbers(self._rule, group.optimizer.hyper(1)))
        self.pinned = torch.zeros(count, dtype=torch.float32, pin_memory=True)
        self.on_device = torch.zeros(count, dtype=torch.float32, device=device)
        self._write = self.pinned.numpy()

    def next_step(self) -> None:
        # the recording was replayed last for a batch whose seat has been taken again, so it has read the old ones
        self._write[:] = numbers(self._rule, self.group.next_step())


def _rings(bags: CachedModule) -> tuple[int, ...]:
    """What a recording points to: the rings, and the caches, which an overflow can make larger."""
    return tuple(
        number
        for group in bags.groups
        for number in (-1 if group.ring is None else group.ring.serial, group.cache.data_ptr())
    )


def _stand_in(leaf: Tensor, is_ids: bool, device: torch.device) -> Tensor:
    """Ids are in the plan already: the tensor that stands for them has a shape and nothing else, so using it fails."""
    if is_ids:
        return torch.empty_like(leaf, device="meta")
    return torch.empty(leaf.shape, dtype=leaf.dtype, device=device)


def _on_device(leaf: Any, ids: list[Tensor], device: torch.device) -> Any:
    if not isinstance(leaf, Tensor) or any(leaf is tensor for tensor in ids):
        return leaf
    return on_device(leaf, device)


def _take_apart(batch: Any) -> tuple[list[Any], Any]:
    """Tensors and other values of a batch, and its form."""
    if isinstance(batch, Tensor):
        return [batch], Tensor
    kind = type(batch)
    if isinstance(batch, tuple) and all(isinstance(part, Tensor) for part in batch):
        return list(batch), kind
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type) and kind not in pytree.SUPPORTED_NODES:
        names = [field.name for field in dataclasses.fields(batch)]
        pytree.register_pytree_node(
            kind, lambda value: ([getattr(value, name) for name in names], None), lambda values, _: kind(*values)
        )
    return pytree.tree_flatten(batch)


def _put_together(leaves: list[Any], form: Any) -> Any:
    if form is Tensor:
        return leaves[0]
    if isinstance(form, type):
        return form._make(leaves) if hasattr(form, "_make") else form(leaves)
    return pytree.tree_unflatten(leaves, form)


@contextmanager
def _watching() -> Iterator[tuple[dict[int, torch.optim.Optimizer], list[str]]]:
    """Which optimizers take a step meanwhile, and where the host waits for the device."""
    found: dict[int, torch.optim.Optimizer] = {}
    waits: list[str] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not isinstance(optimizer, RowOptimizer):
            found[id(optimizer)] = optimizer

    handle = register_optimizer_step_pre_hook(note)
    mode = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode(max(mode, 1))
            yield found, waits
        for warning in caught:
            if "synchronizing CUDA operation" in str(warning.message):
                waits.append(f"{Path(warning.filename).name}:{warning.lineno}")
            elif "Synchronization debug mode" not in str(warning.message):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        handle.remove()


def _make_recordable(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer keep on the device what changes from step to step."""
    name = type(optimizer).__name__
    fused = isinstance(optimizer, torch.optim.SGD | torch.optim.Adam | torch.optim.AdamW)
    if not fused and "capturable" not in optimizer.defaults:
        raise CannotRecordError(f"torch.optim.{name} cannot be recorded: use SGD, Adam or AdamW for the dense part")
    for group in optimizer.param_groups:
        params = [param for param in group["params"] if param.requires_grad]
        if any(not param.is_cuda or not param.is_floating_point() for param in params):
            raise CannotRecordError(f"{name} has parameters that are not on the device, or no floats")
        if fused:
            group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
        if params and not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=params[0].device)
        for param in params:
            steps = optimizer.state[param].get("step") if param in optimizer.state else None
            if steps is not None:
                value = torch.as_tensor(steps, dtype=torch.float32)
                optimizer.state[param]["step"] = value.to(param.device)
