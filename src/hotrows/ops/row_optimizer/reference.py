"""Optimizer steps on records in plain PyTorch, each with the arithmetic of its `torch.optim` counterpart.

A rule updates records, float32 [U, W], in place; in a record the state follows the weights. A rule's `hyper` is the
result of `coefficients`: for a user's own rule, the optimizer's hyperparameters unchanged.
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
    """hyper: step size (lr with both bias corrections), 1 − beta1, 1 − beta2, eps.

    State: mean [dim], mean of squares [dim].
    """
    step_size, mean_share, square_share, eps = hyper
    mean, square = records[:, dim : 2 * dim], records[:, 2 * dim : 3 * dim]
    mean.add_(grads.sub(mean).mul_(mean_share))
    square.add_(grads.square().sub_(square).mul_(square_share))
    records[:, :dim].sub_(mean.div(square.sqrt().add_(eps)), alpha=step_size)


RULES: dict[str, Rule] = {
    "sgd": sgd,
    "adagrad": adagrad,
    "row_wise_adagrad": row_wise_adagrad,
    "adam": adam,
}


def coefficients(rule: str, hyper: tuple[float, ...]) -> list[float]:
    """The values that a rule computes with, from its optimizer's hyperparameters. In float32 the bits are the same."""
    if rule == "adam":
        step_size, beta1, beta2, eps = hyper
        return [step_size, 1 - beta1, 1 - beta2, eps]  # subtracted in double: 1 − float32(beta) loses digits
    return list(hyper)


def row_optimizer(
    rule: str, cache: Tensor, slots: Tensor, grads: Tensor, num: Tensor, dim: int, hyper: Tensor | tuple[float, ...]
) -> None:
    count = filled(slots, num)
    slots, grads = slots[:count], grads[:count]
    present = slots >= 0
    slots, grads = slots[present], grads[present]
    records = cache[slots]
    RULES[rule](records, grads, dim, host_coefficients(rule, hyper))
    cache[slots] = records


def host_coefficients(rule: str, hyper: Tensor | tuple[float, ...]) -> tuple[float, ...]:
    """The coefficients on the host. If they are a CUDA tensor, the host waits for the device."""
    return tuple(hyper.tolist() if isinstance(hyper, Tensor) else coefficients(rule, hyper))
