"""One step of SGD, Adam or AdamW on dense parameters, with all of a group's parameters in one launch."""

import torch
from torch import Tensor

from hotrows.dense.dense_optimizer import reference

_PLAIN = (Tensor, torch.nn.Parameter)  # subclasses such as DTensor define their own steps


def has_kernel(lr: Tensor, steps: list[Tensor], *lists: list[Tensor]) -> bool:
    """True if the kernel takes these parameters.

    Args:
        lists: the parameters, their gradients and the parts of their state.
    """
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
    """Take a step of `torch.optim.SGD`.

    Args:
        params, grads: float32, contiguous.
        buffers: of the momentum, not read in the first step; an empty list without momentum.
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
    """Take a step of `torch.optim.Adam`, or, with `decoupled` weight decay, of `torch.optim.AdamW`.

    Args:
        params, grads: float32, contiguous.
        means, squares: the running means of the gradients and of their squares.
        steps: how many steps each parameter has taken, this one included; float32, one element on the device.
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
