"""One step of SGD, Adam or AdamW on dense parameters, with all of a group's parameters in one launch."""

import torch
from torch import Tensor

from hotrows.dense.dense_optimizer import reference

_PLAIN = (Tensor, torch.nn.Parameter)  # others, as DTensor, know themselves how they step


def has_kernel(lr: Tensor, steps: list[Tensor], *lists: list[Tensor]) -> bool:
    """Whether the kernel takes parameters like these; `lists` are they, their gradients and their states."""
    params = lists[0]
    scalars = [lr, *steps]
    return (
        len(params) > 0
        and all(type(tensor) in _PLAIN for tensors in (scalars, *lists) for tensor in tensors)
        and all(tensor.is_cuda and tensor.dtype == torch.float32 for tensors in (scalars, *lists) for tensor in tensors)
        and all(tensor.device == params[0].device for tensors in (scalars, *lists) for tensor in tensors)
        and all(tensor.is_contiguous() for tensors in lists for tensor in tensors)
        and all(scalar.numel() == 1 for scalar in scalars)
    )


def sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    lr: Tensor,
    *,
    weight_decay: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
) -> None:
    """Step the parameters, as `torch.optim.SGD` does.

    Args:
        params, grads: float32, contiguous.
        buffers: those of the momentum, written only if this is the first step; none without momentum.
        lr: float32, one element on the device.
    """
    arguments = (params, grads, buffers, lr, weight_decay, momentum, dampening, nesterov, maximize, is_first_step)
    if params[0].is_cuda:
        from hotrows.dense.dense_optimizer import kernel

        with torch.cuda.device_of(params[0]):  # type: ignore[no-untyped-call]
            kernel.sgd(*arguments)
    else:
        reference.sgd(*arguments)


def adam(
    params: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    lr: Tensor,
    *,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    decoupled: bool,
) -> None:
    """Step the parameters, as `torch.optim.Adam` does, or with `decoupled` weight decay `torch.optim.AdamW`.

    Args:
        params, grads: float32, contiguous.
        means, squares: the running means of the gradients and of their squares.
        steps: for each parameter how many steps it has taken with this one, float32, one element on the device.
        lr: float32, one element on the device.
    """
    arguments = (
        params, grads, means, squares, steps, lr, beta1, beta2, weight_decay, eps, maximize, decoupled,
    )  # fmt: skip
    if params[0].is_cuda:
        from hotrows.dense.dense_optimizer import kernel

        with torch.cuda.device_of(params[0]):  # type: ignore[no-untyped-call]
            kernel.adam(*arguments)
    else:
        reference.adam(*arguments)
