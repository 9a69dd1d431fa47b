"""Optimizer steps on records in plain PyTorch, each with the arithmetic of its `torch.optim` counterpart.

A rule changes a batch of records, float32 [U, W], in place; the state follows the weights in the record.
"""

from collections.abc import Callable

from torch import Tensor

from hotrows.ops.rows import filled

Rule = Callable[[Tensor, Tensor, int, tuple[float, ...]], None]


def sgd(records: Tensor, grads: Tensor, dim: int, hyper: tuple[float, ...]) -> None:
    """hyper: lr, weight decay. No state."""
    lr, weight_decay = hyper
    weights = records[:, :dim]
    if weight_decay:
        grads = grads.add(weights, alpha=weight_decay)
    weights.add_(grads, alpha=-lr)


def adagrad(records: Tensor, grads: Tensor, dim: int, hyper: tuple[float, ...]) -> None:
    """hyper: lr (decayed), eps. State: sum of squares [dim]."""
    lr, eps = hyper
    total = records[:, dim : 2 * dim]
    total.add_(grads.square())
    records[:, :dim].sub_(grads.div(total.sqrt().add_(eps)), alpha=lr)


def row_wise_adagrad(records: Tensor, grads: Tensor, dim: int, hyper: tuple[float, ...]) -> None:
    """hyper: lr, eps. State: sum of mean squares [1]."""
    lr, eps = hyper
    total = records[:, dim : dim + 1]
    total.add_(grads.square().mean(1, keepdim=True))
    records[:, :dim].sub_(grads.div(total.sqrt().add_(eps)), alpha=lr)


def adam(records: Tensor, grads: Tensor, dim: int, hyper: tuple[float, ...]) -> None:
    """hyper: step size (lr with both bias corrections), beta1, beta2, eps. State: mean [dim], mean of squares [dim]."""
    step_size, beta1, beta2, eps = hyper
    mean, square = records[:, dim : 2 * dim], records[:, 2 * dim : 3 * dim]
    mean.add_(grads.sub(mean).mul_(1 - beta1))
    square.add_(grads.square().sub_(square).mul_(1 - beta2))
    records[:, :dim].sub_(mean.div(square.sqrt().add_(eps)), alpha=step_size)


RULES: dict[str, Rule] = {
    "sgd": sgd,
    "adagrad": adagrad,
    "row_wise_adagrad": row_wise_adagrad,
    "adam": adam,
}


def row_update(
    rule: str, cache: Tensor, slots: Tensor, grads: Tensor, num: Tensor, dim: int, hyper: tuple[float, ...]
) -> None:
    count = filled(slots, num)
    slots, grads = slots[:count], grads[:count]
    present = slots >= 0
    slots, grads = slots[present], grads[present]
    records = cache[slots]
    RULES[rule](records, grads, dim, hyper)
    cache[slots] = records
