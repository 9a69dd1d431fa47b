"""The embedding modules in float64 NumPy, written from their documentation alone: no cache, no autograd, no streams.

Every table is one array, a forward pass reads rows of it, and a backward pass is one step of a formula.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Two different rows whose values are closer than this may swap the maximum of a bag in float32. The gradient then goes
# to the other row, so the weights of such a program cannot be compared with this model.
LEAST_MARGIN = 2e-5


@dataclass(frozen=True)
class Bags:
    """The lookups of one feature in one batch: `lengths[b]` ids for each sample."""

    ids: Array  # int64 [N]
    lengths: Array  # int64 [B]
    weights: Array | None = None  # float32 [N]

    @property
    def bag_of(self) -> Array:
        """The bag of each lookup."""
        return np.repeat(np.arange(self.lengths.size), self.lengths)


Batch = tuple[Bags, ...]  # one for each feature


@dataclass(frozen=True)
class TableShape:
    """One table."""

    name: str
    num_rows: int
    dim: int
    num_features: int = 1


class NaiveOptimizer:
    """The documented formulas of the row optimizers.

    Args:
        kind: the name of the class in `hotrows.optim`.
        numbers: its constructor's arguments, all of them.
    """

    def __init__(self, kind: str, numbers: Mapping[str, Any]) -> None:
        self.kind = kind
        self.numbers = dict(numbers)
        self.modules: list[NaiveModule] = []  # in the order in which they were made

    def initial_state(self, num_rows: int, dim: int) -> dict[str, Array]:
        if self.kind == "SGD":
            return {}
        if self.kind == "Adam":
            return {"exp_avg": np.zeros((num_rows, dim)), "exp_avg_sq": np.zeros((num_rows, dim))}
        width = dim if self.kind == "Adagrad" else 1
        return {"sum": np.full((num_rows, width), float(self.numbers["initial_accumulator_value"]))}

    def step(self, number: int, weights: Array, state: dict[str, Array], rows: Array, grads: Array) -> None:
        """Update the given rows, each once, in step `number`, counted from 1."""
        numbers = self.numbers
        if self.kind == "SGD":
            weights[rows] -= numbers["lr"] * (grads + numbers["weight_decay"] * weights[rows])
        elif self.kind == "Adam":
            beta1, beta2 = numbers["betas"]
            mean, square = state["exp_avg"], state["exp_avg_sq"]
            mean[rows] = beta1 * mean[rows] + (1 - beta1) * grads
            square[rows] = beta2 * square[rows] + (1 - beta2) * grads**2
            size = numbers["lr"] * (1 - beta2**number) ** 0.5 / (1 - beta1**number)
            weights[rows] -= size * mean[rows] / (np.sqrt(square[rows]) + numbers["eps"])
        else:
            squares = grads**2
            if self.kind == "RowWiseAdagrad":
                squares = squares.mean(1, keepdims=True)
            state["sum"][rows] += squares
            rate = numbers["lr"] / (1 + (number - 1) * numbers.get("lr_decay", 0.0))
            weights[rows] -= rate * grads / (np.sqrt(state["sum"][rows]) + numbers["eps"])


@dataclass
class Feature:
    """What one feature of a forward pass has read, as it was then."""

    table: str
    dim: int
    bags: Bags
    bag_of: Array
    has_row: Array  # bool [N]; False for lookups of the padding row
    values: Array  # [N, D]
    share: Array  # [N, D]: the derivative of a bag's output by each of its rows
    out: Array  # [B, D]


@dataclass
class NaivePass:
    """A forward pass, for its backward passes."""

    module: "NaiveModule"
    features: list[Feature]
    is_ambiguous: bool = False  # a maximum was too close to another one

    def grads_of_weights(self, grads: Sequence[Array | None]) -> list[Array]:
        """The gradients of the weights of the lookups in each feature."""
        found = []
        for feature, grad in zip(self.features, grads, strict=True):
            by_lookup = np.zeros_like(feature.values) if grad is None else grad[feature.bag_of] * feature.values
            found.append(np.where(feature.has_row, by_lookup.sum(1), 0.0))
        return found


Gradients = Iterable[tuple[NaivePass, Sequence[Array | None]]]  # for each pass: by feature, None where it has none


@dataclass
class NaiveModule:
    """An `EmbeddingBag` or an `EmbeddingBagCollection`.

    Args:
        optimizer: None for rows that are only read.
        weights: the initial rows of each table.
        padding: the id without a row, of the only table.
    """

    tables: Sequence[TableShape]
    mode: str
    optimizer: NaiveOptimizer | None
    weights: dict[str, Array]
    padding: int | None = None
    training: bool = True
    state: dict[str, dict[str, Array]] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)  # for the tables of each dim together
    gathered: list[tuple[NaivePass, Sequence[Array | None]]] | None = None  # within `accumulate`
    is_uncertain: bool = False  # a gradient went to the row of a maximum that was ambiguous

    def __post_init__(self) -> None:
        self.weights = {name: rows.astype(np.float64) for name, rows in self.weights.items()}
        if not self.steps:
            self.steps = dict.fromkeys((table.dim for table in self.tables), 0)
            for table in self.tables:
                made = None if self.optimizer is None else self.optimizer.initial_state(table.num_rows, table.dim)
                self.state[table.name] = made or {}
        if self.optimizer is not None:
            self.optimizer.modules.append(self)

    @property
    def features(self) -> list[TableShape]:
        """The table of each feature."""
        return [table for table in self.tables for _ in range(table.num_features)]

    def forward(self, batch: Batch) -> NaivePass:
        found = NaivePass(self, [])
        for table, bags in zip(self.features, batch, strict=True):
            bag_of = bags.bag_of
            values = self.weights[table.name][bags.ids]
            has_row = np.ones(bags.ids.shape, bool) if self.padding is None else bags.ids != self.padding
            if self.mode == "max":
                share, is_ambiguous = _winners(values, bags, has_row)
                found.is_ambiguous |= is_ambiguous
            else:
                scale = has_row.astype(np.float64)
                if self.mode == "mean":
                    num_rows = np.bincount(bag_of, scale, minlength=bags.lengths.size)
                    scale /= np.maximum(num_rows, 1)[bag_of]
                elif bags.weights is not None:
                    scale *= bags.weights
                share = np.broadcast_to(scale[:, None], values.shape)
            out = np.zeros((bags.lengths.size, table.dim))
            np.add.at(out, bag_of, share * values)
            found.features.append(Feature(table.name, table.dim, bags, bag_of, has_row, values, share, out))
        return found

    def apply(self, passes: Gradients) -> None:
        """One optimizer step with the sum of the gradients of some forward passes.

        The tables of one dim take part if any of their features has a gradient.
        """
        assert self.optimizer is not None
        rows: dict[str, list[Array]] = {table.name: [] for table in self.tables}
        grads: dict[str, list[Array]] = {table.name: [] for table in self.tables}
        dims_reached = set()
        for one, by_feature in passes:
            self.is_uncertain |= one.is_ambiguous
            pairs = list(zip(one.features, by_feature, strict=True))
            reached = {feature.dim for feature, grad in pairs if grad is not None}
            dims_reached |= reached
            for feature, grad in pairs:
                if feature.dim in reached:
                    out = np.zeros_like(feature.out) if grad is None else grad
                    rows[feature.table].append(feature.bags.ids[feature.has_row])
                    grads[feature.table].append((feature.share * out[feature.bag_of])[feature.has_row])
        for dim in dims_reached:
            self.steps[dim] += 1
        for table in self.tables:
            if rows[table.name]:
                unique, inverse = np.unique(np.concatenate(rows[table.name]), return_inverse=True)
                total = np.zeros((unique.size, table.dim))
                np.add.at(total, inverse, np.concatenate(grads[table.name]))
                weights, state = self.weights[table.name], self.state[table.name]
                self.optimizer.step(self.steps[table.dim], weights, state, unique, total)

    def dim_of(self, name: str) -> int:
        return next(table.dim for table in self.tables if table.name == name)

    def row_state(self, name: str) -> dict[str, Array]:
        found = {part: values.copy() for part, values in self.state[name].items()}
        return {"step": np.array(float(self.steps[self.dim_of(name)])), **found}

    def load_row_state(self, name: str, state: Mapping[str, Array]) -> None:
        self.steps[self.dim_of(name)] = int(state["step"])
        self.state[name] = {part: values.copy() for part, values in state.items() if part != "step"}

    def copied(self) -> "NaiveModule":
        """A copy with an optimizer of its own."""
        optimizer = None if self.optimizer is None else NaiveOptimizer(self.optimizer.kind, self.optimizer.numbers)
        weights = {name: rows.copy() for name, rows in self.weights.items()}
        return NaiveModule(
            self.tables, self.mode, optimizer, weights, self.padding, self.training, copy.deepcopy(self.state),
            dict(self.steps), is_uncertain=self.is_uncertain,
        )  # fmt: skip


def _winners(values: Array, bags: Bags, has_row: Array) -> tuple[Array, bool]:
    """One where a lookup is the first largest one of its bag, and whether another row is too close to a largest one."""
    share, is_ambiguous = np.zeros_like(values), False
    stop = 0
    for length in bags.lengths.tolist():
        start, stop = stop, stop + length
        mine = start + np.flatnonzero(has_row[start:stop])
        if mine.size:
            best = mine[values[mine].argmax(0)]
            share[best, np.arange(values.shape[1])] = 1.0
            others = bags.ids[mine][:, None] != bags.ids[best][None, :]
            margins = np.where(others, values[best, np.arange(values.shape[1])] - values[mine], np.inf)
            is_ambiguous |= bool((margins < LEAST_MARGIN).any())
    return share, is_ambiguous
