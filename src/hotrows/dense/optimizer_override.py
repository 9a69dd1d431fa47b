"""Steps of PyTorch's fused optimizers, computed by `ops.dense_step`: a launch that fills the device.

The optimizers stay as they are, with their hooks, groups and states: only the operation that their step comes down to
is another.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from hotrows.dense import dense_optimizer
from hotrows.dense.dense_optimizer import has_kernel


class _Thread(threading.local):
    """What belongs to a thread, as the stack of modes does."""

    def __init__(self) -> None:
        self.depth = 0  # of `dense_steps`
        self.entered: list[AbstractContextManager[object]] = []  # for steps that are being taken


_thread = _Thread()


@contextmanager
def optimizer_override() -> Iterator[None]:
    """Meanwhile, steps of fused optimizers with a rate on the device are computed by `ops.dense_step`, if they can be.

    That is: steps that this thread takes. Called with a function it gives that function, run so.
    """
    _register()
    num_entered = len(_thread.entered)
    _thread.depth += 1
    try:
        yield
    finally:
        _thread.depth -= 1
        while len(_thread.entered) > num_entered:  # a step has raised
            _leave()


@cache
def _register() -> None:
    """Once and for all: other threads may be walking over the hooks."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling() or _thread.depth == 0:
        return
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    mode: AbstractContextManager[object] = _OwnSteps() if is_fused else nullcontext()  # type: ignore[no-untyped-call]
    mode.__enter__()
    _thread.entered.append(mode)


def _after_step(*_: Any) -> None:
    if not torch.compiler.is_compiling() and _thread.depth > 0:
        _leave()


def _leave() -> None:
    _thread.entered.pop().__exit__(None, None, None)


class _OwnSteps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        own = _OWN.get(func)
        if own is not None and own(*args, **kwargs):
            return None
        return func(*args, **kwargs)


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
    """Take the step, or say that it must be left to PyTorch."""
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
    """The same."""
    if grad_scale is not None or found_inf is not None or amsgrad:
        return False
    if not has_kernel(lr, steps, params, grads, means, squares):
        return False
    dense_optimizer.adam(params, grads, means, squares, steps, lr, **numbers, decoupled=decoupled)
    return True


def _adamw(*tensors: list[Tensor], **numbers: Any) -> bool:
    return _adam(*tensors, **numbers, decoupled=True)


_OWN: dict[Any, Callable[..., bool]] = {
    torch.ops.aten._fused_sgd_.tensor_lr: _sgd,
    torch.ops.aten._fused_adam_.tensor_lr: _adam,
    torch.ops.aten._fused_adamw_.tensor_lr: _adamw,
}
