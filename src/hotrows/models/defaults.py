"""The settings with which a model trains well when a run names none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Defaults:
    """The settings of a run that depend on its model. A model's class has them as its attribute `defaults`.

    Everything here gives way to a run file and to the program's options.

    Args:
        optimizer: the section [optimizer] of a run file, of the rows: a name, and settings of that optimizer.
        dense_optimizer: the section [dense_optimizer] of a run file.
        init: the initial values of the rows, see `hotrows.Table`.
        steps: the batch size is halved from 2,048 until an epoch has this many steps.

    Example::

        class MyModel(Model):
            defaults = Defaults(optimizer={"name": "adagrad", "lr": 0.1}, steps=100)
    """

    optimizer: Mapping[str, Any] = field(default_factory=lambda: {"name": "adagrad", "lr": 0.02})
    dense_optimizer: Mapping[str, Any] = field(default_factory=lambda: {"name": "adam", "lr": 0.001})
    init: str = "uniform(0.1)"
    steps: int = 500
