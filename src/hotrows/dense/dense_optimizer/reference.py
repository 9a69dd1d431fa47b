"""Steps of dense optimizers in plain PyTorch, with the arithmetic of PyTorch's fused kernels for CUDA.

All numbers are float32, the betas too. A multiplication and addition that these kernels do in one is rounded once.
"""

import torch
from torch import Tensor


def sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    lr: Tensor,
    weight_decay: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
) -> None:
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        change = -grad if maximize else grad
        if weight_decay != 0:
            change = _multiply_add(_float(weight_decay), param, change)
        if momentum != 0:
            if is_first_step:
                buffers[i].copy_(change)
            else:
                share = (1 - _float(dampening)) * change
                buffers[i].copy_(_multiply_add(_float(momentum), buffers[i], share))
            change = _multiply_add(_float(momentum), buffers[i], change) if nesterov else buffers[i]
        param.copy_(_multiply_add(-lr, change, param))


def adam(
    params: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    lr: Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    decoupled: bool,
) -> None:
    rate1, rate2, decay = _float(beta1), _float(beta2), _float(weight_decay)
    for param, grad, mean, square, step in zip(params, grads, means, squares, steps, strict=True):
        new, change = param, -grad if maximize else grad
        if weight_decay != 0 and decoupled:
            new = _multiply_add(-(lr * decay), param, param)
        elif weight_decay != 0:
            change = _multiply_add(decay, param, change)
        mean.copy_(_multiply_add(rate1, mean, (1 - rate1) * change))
        square.copy_(_multiply_add(rate2, square, (1 - rate2) * (change * change)))
        step_size = lr / (1 - (rate1.double() ** step.double()).float())
        root = (1 - (rate2.double() ** step.double()).float()).sqrt()
        param.copy_(new - step_size * mean / (square.sqrt() / root + _float(eps)))


def _float(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float32)


def _multiply_add(factor: Tensor, other: Tensor, summand: Tensor) -> Tensor:
    return (factor.double() * other.double() + summand.double()).float()
