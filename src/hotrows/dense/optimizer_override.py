"""Steps of PyTorch's fused optimizers, computed by `dense.dense_optimizer`, which fills the device with one launch.

An optimizer stays as it is, with its hooks, groups and state. Only the fused operator at the end of its step is
replaced, by `runtime.cuda_private.replace_fused_steps`; with private calls switched off, it is not.
"""

import threading
import weakref
from contextlib import AbstractContextManager, ContextDecorator, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hotrows.dense import dense_optimizer
from hotrows.dense.dense_optimizer import has_kernel
from hotrows.runtime.cuda_private import replace_fused_steps


class _ThreadState(threading.local):
    """PyTorch has a stack of dispatch modes for each thread, so this belongs to a thread too."""

    def __init__(self) -> None:
        self.entered: list[AbstractContextManager[object]] = []  # replacements for the steps that are being taken
        self.outer: list[int] = []  # how many of them there were when the override was entered


class OptimizerOverride(ContextDecorator):
    """While entered, the fused steps of the given optimizers are computed by `dense_optimizer` if it has a kernel.

    That holds for steps taken by the thread that has entered it. Called with a function, it returns that function,
    which then runs inside. The optimizers have hooks from now until `close`; nothing global is changed.
    """

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self._thread = _ThreadState()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._handles: list[RemovableHandle] = []
        for optimizer in optimizers:
            self.add(optimizer)

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Compute the steps of this optimizer too, from its next step on."""
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_step))

    def close(self) -> None:
        """Remove the hooks from all optimizers."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._optimizers.clear()

    def __enter__(self) -> "OptimizerOverride":
        self._thread.outer.append(len(self._thread.entered))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        num_entered = self._thread.outer.pop()
        while len(self._thread.entered) > num_entered:  # a step has raised, so its hook after the step was not called
            self._leave()

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if torch.compiler.is_compiling() or not self._thread.outer:
            return
        is_fused = any(group.get("fused") for group in optimizer.param_groups)
        replacement = replace_fused_steps(sgd=_sgd, adam=_adam, adamw=_adamw) if is_fused else nullcontext()
        replacement.__enter__()
        self._thread.entered.append(replacement)

    def _after_step(self, *_: Any) -> None:
        outer = self._thread.outer
        if not torch.compiler.is_compiling() and outer and len(self._thread.entered) > outer[-1]:
            self._leave()

    def _leave(self) -> None:
        self._thread.entered.pop().__exit__(None, None, None)


def _sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    *,
    lr: Tensor,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    **numbers: Any,
) -> bool:
    """Take a step of `torch.optim.SGD`. False if PyTorch has to take it."""
    if grad_scale is not None or found_inf is not None or not has_kernel(lr, [], params, grads, buffers):
        return False
    dense_optimizer.sgd(params, grads, buffers, lr, **numbers)
    return True


def _adam(
    params: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    _: list[Tensor],
    steps: list[Tensor],
    *,
    lr: Tensor,
    amsgrad: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    decoupled: bool = False,
    **numbers: Any,
) -> bool:
    """Take a step of `torch.optim.Adam`. False if PyTorch has to take it."""
    if grad_scale is not None or found_inf is not None or amsgrad:
        return False
    if not has_kernel(lr, steps, params, grads, means, squares):
        return False
    dense_optimizer.adam(params, grads, means, squares, steps, lr, **numbers, decoupled=decoupled)
    return True


def _adamw(*tensors: list[Tensor], **numbers: Any) -> bool:
    """Take a step of `torch.optim.AdamW`. False if PyTorch has to take it."""
    return _adam(*tensors, **numbers, decoupled=True)
