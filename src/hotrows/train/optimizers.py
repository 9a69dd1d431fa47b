"""The optimizers of a run: of the rows and of the dense part, from their sections of the run file."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hotrows.optim import RowOptimizer, make_optimizer
from hotrows.train.config import DenseOptimizerConfig, OptimizerConfig, RunConfig

MakeOptimizer = Callable[..., torch.optim.Optimizer]
DENSE: dict[str, MakeOptimizer] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def check_optimizers(config: RunConfig) -> None:
    """Raise for settings that an optimizer does not have or take, before anything is read or allocated."""
    make_row_optimizer(config.optimizer)
    make_dense_optimizer(config.dense_optimizer, [torch.nn.Parameter(torch.zeros(1))])


def make_row_optimizer(config: OptimizerConfig) -> RowOptimizer:
    try:
        return make_optimizer(config.name, **config.arguments())
    except ValueError as error:
        raise ValueError(f"[optimizer]: {error}") from None


def make_dense_optimizer(
    config: DenseOptimizerConfig, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    make, given = DENSE[config.name], config.arguments()
    unknown = sorted(set(given) - _settings_of(make, set(given)))
    if unknown:
        known = ", ".join(sorted(_settings_of(make, set(OptimizerConfig.__dataclass_fields__) - {"name"})))
        raise ValueError(f"[dense_optimizer]: {config.name!r} has no {', '.join(unknown)}: it has {known}")
    try:
        return make(parameters, **given)
    except ValueError as error:
        raise ValueError(f"[dense_optimizer]: {config.name!r}: {error}") from None


def _settings_of(make: MakeOptimizer, names: set[str]) -> set[str]:
    """Those of the names that an optimizer takes."""
    taken: dict[str, Any] = dict(inspect.signature(make).parameters)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
        return names
    return names & taken.keys()
