"""A training step as CUDA graphs: captured once for each plan buffer, and replayed for every batch planned into it.

At small batches a step is a hundred kernels of a few microseconds each, and launching them from Python takes longer
than running them. A graph is launched with one call. Planning and moving rows have a graph of their own,
`planning_graph`, which runs beside this one.
"""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from hotrows.graphs.batch_pytree import flatten_batch, unflatten_batch
from hotrows.graphs.capturable_optimizers import CannotCaptureError, DenseOptimizers, observe_optimizers
from hotrows.graphs.captured_step import CapturedStep, StepStreams
from hotrows.loop.ticket import BatchTicket
from hotrows.nn.base import CachedModule
from hotrows.nn.lookups import on_device
from hotrows.runtime.capture import GraphCapture
from hotrows.runtime.streams import current_stream

B = TypeVar("B")
T = TypeVar("T")

logger = logging.getLogger("hotrows")

PRIORITY = -5  # of the step's kernels: if planning and training compete for the device, training goes first
WARM_UP = 3  # This many steps run eagerly first. They compile kernels and show which optimizers there are.
# Captures that are allowed in addition to one for every eight replays. A step that is captured again and again would be
# faster if it ran eagerly.
SPARE_CAPTURES = 64


class StepOverride(Protocol):
    """While entered in a thread, computes `optimizer.step()` of the added optimizers in that thread with other kernels.

    See `hotrows.dense.optimizer_override`, which this module does not import.
    """

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Compute the steps of this optimizer with other kernels, from its next step on."""

    def close(self) -> None:
        """Remove the override: all optimizers use PyTorch's kernels again."""


def graphed(
    step: Callable[[B], T], bags: CachedModule, *, adapt_optimizers: bool = True, dense_kernels: bool = True
) -> "GraphedStep[B, T]":
    """The same training step, replayed from CUDA graphs if that is possible, and run eagerly if it is not.

    For batches that come from `hotrows.lookahead`::

        def train_step(batch):
            loss = loss_fn(model(batch.dense, bags(batch.ids)), batch.label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        with hotrows.graphed(train_step, bags) as step:
            for batch in hotrows.lookahead(loader, bags):
                loss = step(batch)

    The result is that of the eager step with fused dense optimizers (`dense_kernels` may change the last bit). What the
    step does in Python alone, such as counting and printing, happens only in its eager steps and in captures; a number
    that it reads from Python, such as a loss scale, stays what it was at the capture. Learning rates may change. If the
    step's parameters or optimizers change otherwise, the step is captured again. The ids of the batch may be passed to
    `bags` only.

    A step is replayed if its batch has one id per bag and the loop looks ahead. If no step can be replayed,
    `GraphedStep.reason` says why. Without CUDA every step runs eagerly.

    **What it changes in your optimizers.** A captured step cannot read Python numbers or pageable host memory. So after
    the first step, each `torch.optim` optimizer that the step calls gets `fused=True`, `foreach=False` and, if it has
    that setting, `capturable=True` in its parameter groups; `lr` becomes a float32 tensor on the device, and the state
    `"step"` moves there. Schedulers go on working, as does setting `lr` to a number. Step the scheduler outside of the
    training step. `close()`, or leaving the `with` block, undoes all of it.

    Args:
        step: takes a batch (tensors, or a tuple, dict or dataclass of them), calls `bags` once with the batch's ids,
            trains, and returns a tensor or several. The batch's other tensors are on the device when it gets them. It
            must zero the gradients itself; `param.grad` means nothing after a replay.
        adapt_optimizers: False changes nothing in your optimizers. Then a step is replayed only if they are capturable
            already: `lr` is a tensor on the device and, for Adam and AdamW, `capturable=True`.
        dense_kernels: compute the steps of fused optimizers by `hotrows.dense`, which updates many parameters in one
            launch and so keeps all multiprocessors busy. The result of a step differs from that of PyTorch's kernels in
            the last bit at most.
    """
    override: StepOverride | None = None
    if dense_kernels:
        from hotrows.dense.optimizer_override import OptimizerOverride  # optional: the core does not depend on it

        override = OptimizerOverride()
    return GraphedStep(step, bags, adapt_optimizers, override)


class GraphedStep(Generic[B, T]):
    """A training step that is replayed from CUDA graphs; see `graphed`, which makes it.

    Call it with a batch. It is also a context manager that closes it.

    Attributes:
        reason: why all steps run eagerly from now on. None while steps are replayed whenever their batch permits it.
        num_replayed: how many steps were replayed.
        num_eager: how many steps ran eagerly.
    """

    def __init__(
        self,
        step: Callable[[B], T],
        bags: CachedModule,
        adapt_optimizers: bool = True,
        override: StepOverride | None = None,
    ) -> None:
        self._step = step
        self._bags = bags
        self._override: StepOverride = _NoOverride() if override is None else override
        reasons = (scheduler.reason_without_graph() for scheduler in bags.schedulers)
        self.reason = next((reason for reason in reasons if reason is not None), None)
        self.num_replayed = 0
        self.num_eager = 0
        self._optimizers = DenseOptimizers(bags.device.type, adapt_optimizers)
        self._on_cuda = bags.device.type == "cuda"
        self._num_warm_ups = 0
        self._num_captured = 0
        self._captured: dict[tuple[int, ...], CapturedStep] = {}  # by the plan buffer in each cache
        self._capture: GraphCapture | None = None
        self._streams: StepStreams | None = None

    def __call__(self, batch: B) -> T:
        if not self._on_cuda:
            self.num_eager += 1
            return self._run(batch)
        leaves, structure = flatten_batch(batch)
        tickets = None if self.reason else self._bags.current
        plan_buffers = None if tickets is None else self._plan_buffers(tickets, leaves)
        if tickets is None or plan_buffers is None:
            return self._run_eagerly(leaves, structure)  # the bags plan the batch now if no loop has
        stream = current_stream(self._bags.device)
        if self._streams is not None:
            self._streams.follow(stream)  # before learning rates are written, and before the replay
        if self._num_warm_ups < WARM_UP or self._have_changed():
            return self._warm_up(leaves, structure)
        captured = self._captured_for(leaves, structure, tickets, plan_buffers)
        if captured is None:
            return self._run_eagerly(leaves, structure)
        self.num_replayed += 1
        return captured.replay(leaves, tickets, stream)  # type: ignore[no-any-return]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Undo what was changed in the optimizers, and free the graphs. Further calls run eagerly.

        Learning rates keep their present values, and are numbers again if they were before. Optimizers go on training
        from the state that they have.
        """
        self.reason = self.reason or "the GraphedStep was closed"
        self._override.close()
        if self._streams is not None:
            self._streams.follow(current_stream(self._bags.device))  # the last replay may be in another stream
            self._optimizers.zero_grad()  # the gradients are in memory that belongs to the graphs
            self._streams = None
        self._forget_captures()
        self._optimizers.restore()

    def _plan_buffers(self, tickets: list[BatchTicket], leaves: list[Any]) -> tuple[int, ...] | None:
        """The plan buffers of the current batch.

        None if the step cannot be replayed: the planning graph has not planned the batch, the bags are not training,
        `accumulate` is open, or `leaves` are the values of another batch.
        """
        bags = self._bags
        if not bags.trains_rows or bags.is_accumulating:
            return None
        plan_buffers: tuple[int, ...] = ()
        for ticket in tickets:
            if ticket.plan_buffer is None or not ticket.has_ids_among(leaves):
                return None
            plan_buffers += (ticket.plan_buffer,)
        return plan_buffers

    def _have_changed(self) -> bool:
        """True if the optimizers have changed since the capture.

        One step then runs eagerly before the next capture: it may allocate optimizer state, which a capture must not,
        because every replay would initialize that state again.
        """
        if self._optimizers.are_unchanged():
            return False
        self._forget_captures()
        try:
            self._count_capture()
        except CannotCaptureError as error:
            self._give_up(str(error))
        return True

    def _forget_captures(self) -> None:
        self._captured.clear()
        self._capture = None  # PyTorch frees the graphs' memory together with the last of them

    def _count_capture(self) -> None:
        self._num_captured += 1
        if self._num_captured > self.num_replayed // 8 + SPARE_CAPTURES:
            raise CannotCaptureError("the step's batches, parameters or optimizers change from call to call")

    def _captured_for(
        self, leaves: list[Any], structure: Any, tickets: list[BatchTicket], plan_buffers: tuple[int, ...]
    ) -> CapturedStep | None:
        """The captured step for this batch, which is captured now if needed. None if it cannot be captured."""
        captured = self._captured.get(plan_buffers)
        if captured is None or not captured.accepts(leaves, structure):
            try:
                captured = self._captured[plan_buffers] = self._capture_step(leaves, structure, tickets)
            except Exception as error:
                self._optimizers.zero_grad()  # the gradients of a capture were never computed
                is_expected = isinstance(error, CannotCaptureError)
                kind = "" if is_expected else f"capturing the step failed: {type(error).__name__}: "
                self._give_up(f"{kind}{error}")
                return None
        return captured

    def _run_eagerly(self, leaves: list[Any], structure: Any) -> T:
        """Run the step itself. As in a captured step, every tensor of the batch except the ids is on the device."""
        self.num_eager += 1
        ids = self._bags.current_ids()
        values = [
            on_device(leaf, self._bags.device)
            if isinstance(leaf, Tensor) and not any(leaf is tensor for tensor in ids)
            else leaf
            for leaf in leaves
        ]
        return self._run(unflatten_batch(values, structure))

    def _run(self, batch: B) -> T:
        with self._override:
            return self._step(batch)

    def _warm_up(self, leaves: list[Any], structure: Any) -> T:
        with observe_optimizers(self._override.add) as (optimizers, waits):
            output = self._run_eagerly(leaves, structure)
        self._num_warm_ups += 1
        try:
            if self._num_warm_ups == WARM_UP and waits:
                raise CannotCaptureError(
                    f"the step waits for the device ({waits[0]}), as .item() and printing a tensor do"
                )
            self._optimizers.found(optimizers)
            self._optimizers.note()
        except CannotCaptureError as error:
            self._give_up(str(error))
        # An autograd graph that is kept alive would tie the capture to the stream of this step.
        values, form = flatten_batch(output)
        detached: T = unflatten_batch([part.detach() if isinstance(part, Tensor) else part for part in values], form)
        return detached

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._captured.clear()
        logger.warning("training steps are not replayed from CUDA graphs: %s", reason)

    def _capture_step(self, leaves: list[Any], structure: Any, tickets: list[BatchTicket]) -> CapturedStep:
        if self._capture is None:
            self._capture = GraphCapture(self._bags.device, PRIORITY)
        if self._streams is None:
            self._streams = StepStreams(self._bags.device)
        self._count_capture()
        self._optimizers.zero_grad()
        self._optimizers.note()
        rates, row_rates = self._optimizers.rate_versions(), _row_rates(self._bags)
        captured = CapturedStep(self._run, self._bags, leaves, structure, tickets, self._capture, self._streams)
        if self._optimizers.rate_versions() != rates or _row_rates(self._bags) != row_rates:
            raise CannotCaptureError("the step changes learning rates: step the scheduler outside of the training step")
        return captured


class _NoOverride:
    """Leaves the steps of optimizers to PyTorch."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        pass

    def close(self) -> None:
        pass


def _row_rates(bags: CachedModule) -> list[Any]:
    return [] if bags.optimizer is None else [dict(group, params=None) for group in bags.optimizer.param_groups]
