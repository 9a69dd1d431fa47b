"""Row optimizers: the semantics of `torch.optim` on sparse gradients, applied to rows in the backward pass.

Only the rows of the batch are updated, each once, with the sum of its gradients. The state of a row is part of its
record and moves with it. The objects are subclasses of `torch.optim.Optimizer`, so that learning-rate schedulers can
drive them; `step()` and `zero_grad()` do nothing, because the backward pass has already updated the rows. For the same
reason gradients of rows cannot be clipped, and a `GradScaler` would scale the updates: use bfloat16 autocast instead,
which needs no scaler.
"""

import inspect
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from hotrows.stores.record import StateField
from hotrows.table import Table


class ModuleWithRows(Protocol):
    """A module whose rows an optimizer updates."""

    tables: tuple[Table, ...]

    def row_state(self, name: str) -> dict[str, Tensor]:
        """The state of a table's rows: "step", and a CPU tensor for each field."""

    def load_row_state(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Set the state of a table's rows from a result of `row_state`."""


class RowOptimizer(torch.optim.Optimizer):
    """Base class of the row optimizers. A subclass defines its rule (see `ops.row_optimizer`), state and `hyper`."""

    rule: str

    def __init__(self, **defaults: float | tuple[float, float]) -> None:
        self.check(defaults)
        self._attached: list[weakref.ref[ModuleWithRows]] = []
        # torch's Optimizer requires a parameter, and the rows are not parameters.
        super().__init__([torch.nn.Parameter(torch.empty(0), requires_grad=False)], dict(defaults))

    @property
    def fields(self) -> tuple[StateField, ...]:
        """The fields of a row's state, in the order in which they follow the weights in the record."""
        return ()

    @property
    def depends_on_step(self) -> bool:
        """Whether `hyper` depends on the step."""
        return False

    def hyper(self, step: int) -> tuple[float, ...]:
        """The hyperparameters of the rule at the given step, counted from 1."""
        raise NotImplementedError

    def check(self, hyperparameters: Mapping[str, Any]) -> None:
        """Raise ValueError for a value that cannot be. Betas are a pair, all others are numbers from 0 up."""
        kind = type(self).__name__
        for name, value in hyperparameters.items():
            if name == "betas":
                pair = tuple(value) if isinstance(value, tuple | list) else ()
                if len(pair) != 2 or not all(isinstance(beta, Real) and 0 <= float(beta) < 1 for beta in pair):
                    raise ValueError(f"{kind}: betas are {value!r}, give two numbers, each at least 0 and less than 1")
            elif not _is_number(value) or not 0 <= value < math.inf:
                raise ValueError(f"{kind}: {name} is {value!r}, it must be 0 or more, and finite")

    def note_step(self) -> None:
        """Note that a step was taken. Otherwise learning-rate schedulers warn that they run before the optimizer."""
        self._opt_called = True

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Do nothing: the rows were updated in the backward pass."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: gradients of rows are not kept."""

    def attach(self, module: "ModuleWithRows") -> None:
        """Include the state of a module's rows in `state_dict` and `load_state_dict`."""
        self._attached = [known for known in self._attached if known() is not None]
        self._attached.append(weakref.ref(module))

    def state_dict(self) -> dict[str, Any]:
        """As in `torch.optim`: the hyperparameters, and the current state of every table's rows."""
        state = {f"{i}.{name}": module.row_state(name) for i, module, name in self._tables()}
        groups = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for key, kind in (("state", dict), ("param_groups", list)):
            if not isinstance(state_dict, Mapping) or not isinstance(state_dict.get(key), kind):
                raise ValueError(f"this is no state of a row optimizer: it has no {kind.__name__} {key!r}")
        tables = {f"{i}.{name}": (module, name) for i, module, name in self._tables()}
        if len(self.param_groups) != len(state_dict["param_groups"]):
            raise ValueError(
                f"the state has {len(state_dict['param_groups'])} parameter groups, this optimizer has "
                f"{len(self.param_groups)}"
            )
        if tables.keys() != state_dict["state"].keys():
            raise ValueError(
                f"the state is of tables {', '.join(state_dict['state'])}, this optimizer's are {', '.join(tables)}"
            )
        for group in state_dict["param_groups"]:
            if not isinstance(group, Mapping):
                raise ValueError(f"the state has a parameter group {group!r}, it must be a dict of hyperparameters")
            self.check({name: value for name, value in group.items() if name in self.defaults})
        for key, (module, name) in tables.items():
            module.load_row_state(name, state_dict["state"][key])
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in loaded.items() if name != "params"})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._attached = []  # a copy is not attached to the modules of the original

    def _tables(self) -> Iterator[tuple[int, "ModuleWithRows", str]]:
        modules = [module for module in (reference() for reference in self._attached) if module is not None]
        for i, module in enumerate(modules):
            for table in module.tables:
                yield i, module, table.name

    def _value(self, name: str) -> float:
        return float(self.param_groups[0][name])

    def _values(self, *names: str) -> tuple[float, ...]:
        return (*map(float, map(self.param_groups[0].__getitem__, names)),)


def _is_number(value: object) -> bool:
    """Also true for a tensor of one number, which `torch.optim` takes as a learning rate."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_meta
    return isinstance(value, Real) and not isinstance(value, bool)


class SGD(RowOptimizer):
    """w ← w − lr · (g + weight_decay · w), for the rows of the batch."""

    rule = "sgd"

    def __init__(self, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(lr=lr, weight_decay=weight_decay)

    def hyper(self, step: int) -> tuple[float, ...]:
        return self._values("lr", "weight_decay")


class Adagrad(RowOptimizer):
    """As `torch.optim.Adagrad`."""

    rule = "adagrad"

    def __init__(
        self, lr: float = 0.01, lr_decay: float = 0.0, initial_accumulator_value: float = 0.0, eps: float = 1e-10
    ) -> None:
        super().__init__(lr=lr, lr_decay=lr_decay, initial_accumulator_value=initial_accumulator_value, eps=eps)

    @property
    def fields(self) -> tuple[StateField, ...]:
        return (StateField("sum", initial_value=self._value("initial_accumulator_value")),)

    @property
    def depends_on_step(self) -> bool:
        return self._value("lr_decay") != 0

    def hyper(self, step: int) -> tuple[float, ...]:
        lr, decay, eps = self._values("lr", "lr_decay", "eps")
        return lr / (1 + (step - 1) * decay), eps


class RowWiseAdagrad(RowOptimizer):
    """Adagrad with one value of state per row: the sum of the mean squares of its gradients."""

    rule = "row_wise_adagrad"

    def __init__(self, lr: float = 0.01, initial_accumulator_value: float = 0.0, eps: float = 1e-10) -> None:
        super().__init__(lr=lr, initial_accumulator_value=initial_accumulator_value, eps=eps)

    @property
    def fields(self) -> tuple[StateField, ...]:
        return (StateField("sum", per_row=True, initial_value=self._value("initial_accumulator_value")),)

    def hyper(self, step: int) -> tuple[float, ...]:
        return self._values("lr", "eps")


class Adam(RowOptimizer):
    """As `torch.optim.SparseAdam`: it updates only the rows of the batch, and counts steps per table."""

    rule = "adam"

    def __init__(self, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        super().__init__(lr=lr, betas=betas, eps=eps)

    @property
    def fields(self) -> tuple[StateField, ...]:
        return StateField("exp_avg"), StateField("exp_avg_sq")

    @property
    def depends_on_step(self) -> bool:
        return True

    def hyper(self, step: int) -> tuple[float, ...]:
        beta1, beta2 = self.param_groups[0]["betas"]
        step_size = self._value("lr") * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        return step_size, beta1, beta2, self._value("eps")


OPTIMIZERS: dict[str, type[RowOptimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "row-wise-adagrad": RowWiseAdagrad,
    "adam": Adam,
}


def make_optimizer(name: str, **arguments: Any) -> RowOptimizer:
    """A row optimizer from a name in OPTIMIZERS."""
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer is {name!r}: known are {', '.join(sorted(OPTIMIZERS))}")
    known = list(inspect.signature(OPTIMIZERS[name]).parameters)
    unknown = [argument for argument in arguments if argument not in known]
    if unknown:
        raise ValueError(f"optimizer {name!r} has no {', '.join(unknown)}: it has {', '.join(known)}")
    return OPTIMIZERS[name](**arguments)


def check_optimizer(optimizer: object) -> None:
    """Raise ValueError if this is not a row optimizer, such as one of `torch.optim`."""
    if optimizer is not None and not isinstance(optimizer, RowOptimizer):
        given = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
        known = ", ".join(f"hotrows.optim.{kind.__name__}" for kind in OPTIMIZERS.values())
        raise ValueError(f"optimizer is {given!r}: give one of {known}, such as hotrows.optim.SGD(lr=0.1)")
