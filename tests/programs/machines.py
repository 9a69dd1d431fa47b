"""What runs a program call by call: the naive model in float64. `library_machine.py` has the machine of the library."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from tests.programs.losses import SLOPE, pull_of
from tests.programs.modules import make_naive
from tests.programs.naive import Array, Bags, NaiveModule, NaiveOptimizer, NaivePass
from tests.programs.operations import (
    Accumulate,
    Backward,
    ChangeIds,
    Copy,
    Deduplicate,
    EndAccumulate,
    Export,
    Forward,
    Graphed,
    Load,
    LoadWeight,
    Loop,
    Mode,
    Next,
    Operation,
    Read,
    ReadRows,
    Save,
    SetRate,
    State,
)
from tests.programs.program import Program, described

# What one call has shown, by name. None: the naive model cannot know it, because a maximum was ambiguous.
Seen = dict[str, Tensor | Array | str | None]


class FailedCallError(Exception):
    """A call of a program raised what it must not raise, or did not raise what it must."""


class Machine(ABC):
    """Runs a program. What is open is dropped as soon as the program's `State` says so."""

    def __init__(self, program: Program, device: str) -> None:
        self.program = program
        self.specs = program.specs
        self.state = State(program.specs, device)

    def run(self) -> list[Seen]:
        """What the program has shown: at its beginning, in each call, and at its end."""
        seen = [self._carefully("the beginning", self.rows)]
        for number, operation in enumerate(self.program.operations):
            where = f"call {number}, {described(operation)}"
            seen.append(self._carefully(where, functools.partial(self.carry_out, operation)))
            self.state.apply(operation)
            self.drop_closed()
        return [*seen, self._carefully("the end", self.finish)]

    def _carefully(self, where: str, call: Callable[[], Seen]) -> Seen:
        try:
            return call()
        except Exception as error:
            raise FailedCallError(f"{type(self).__name__}, {where}: {type(error).__name__}: {error}") from error

    @abstractmethod
    def rows(self) -> Seen:
        """All rows and row states of all modules, and of the originals of copies."""

    @abstractmethod
    def carry_out(self, operation: Operation) -> Seen:
        """Make one call."""

    @abstractmethod
    def drop_closed(self) -> None:
        """Forget forward passes and loops that are no longer open."""

    @abstractmethod
    def finish(self) -> Seen:
        """Leave all that is open, and return the rows."""

    def current_batch(self, module: int) -> int:
        """The number of the batch whose iteration it is in a loop over one module."""
        name = self.state.current[module]
        assert name is not None
        loop = self.state.loops[name]
        return loop.operation.batches[loop.position - 1][0]


def rows_to_load(seed: int, num_rows: int, dim: int) -> Array:
    """The rows that `LoadWeight` loads, float32 [R, D]."""
    return (np.random.default_rng(seed).standard_normal((num_rows, dim)) * 0.5).astype(np.float32)


class NaivelyOpen:
    """A forward pass of the naive model, with its loss."""

    def __init__(self, found: NaivePass, operation: Forward) -> None:
        self.found = found
        self.seed = operation.seed
        self.first_only = operation.first_only
        has_weights = found.features[0].bags.weights is not None
        self.weights_need_grad = operation.weights_need_grad and has_weights

    def grads(self, scale: float) -> list[Array | None]:
        """The gradient of each feature's output; None where the loss does not use it."""
        found: list[Array | None] = []
        for number, feature in enumerate(self.found.features):
            pull = pull_of(self.seed, number, feature.out.shape).astype(np.float64)
            is_used = number == 0 or not self.first_only
            num_samples = max(1, feature.out.shape[0])
            found.append(scale * (pull + SLOPE * feature.out) / num_samples if is_used else None)
        return found


class NaiveMachine(Machine):
    """Runs a program in the naive model.

    Args:
        weights: the initial rows of each table, for each module.
    """

    def __init__(self, program: Program, device: str, weights: Sequence[dict[str, Array]]) -> None:
        super().__init__(program, device)
        self.modules: list[NaiveModule] = []
        for spec, rows in zip(program.specs, weights, strict=True):
            optimizer = None if spec.optimizer is None else NaiveOptimizer(spec.optimizer, dict(spec.numbers))
            if spec.shared:
                optimizer = self.modules[-1].optimizer
            self.modules.append(make_naive(spec, optimizer, rows))
        self.originals: list[NaiveModule] = []
        self.batches = [list(spec.batches) for spec in program.specs]
        self.passes: dict[int, NaivelyOpen] = {}
        self.saved: dict[int, dict[str, Array]] = {}

    def rows(self) -> Seen:
        seen: Seen = {}
        for number, module in enumerate([*self.modules, *self.originals]):
            seen |= _named(f"module {number}", module, _rows_of(module))
        return seen

    def drop_closed(self) -> None:
        self.passes = {name: one for name, one in self.passes.items() if name in self.state.passes}

    def finish(self) -> Seen:
        for module in sorted(self.state.accumulating):
            self._end_accumulate(self.modules[module])
        return self.rows()

    def carry_out(self, operation: Operation) -> Seen:
        match operation:
            case Forward(name, module, batch):
                found = self.modules[module].forward(self.batches[module][batch])
                self.passes[name] = NaivelyOpen(found, operation)
                return _outputs(found)
            case Read(module, batch):
                return _outputs(self.modules[module].forward(self.batches[module][batch]))
            case Backward(passes, scale):
                return self._backward([self.passes[name] for name in passes], scale)
            case Next(loop):
                return {"found": self._next(self.state.loops[loop].operation, self.state.loops[loop].position)}
            case Accumulate(module):
                self.modules[module].gathered = []
            case EndAccumulate(module, fails):
                if fails:
                    self.modules[module].gathered = None
                else:
                    self._end_accumulate(self.modules[module])
            case Mode(module, training):
                self.modules[module].training = training
            case Save(name, module, what):
                self.saved[name], seen = self._save(self.modules[module], what)
                return seen
            case Load(name):
                self._load(self.state.saved[name], self.saved[name])
            case LoadWeight(module, table, seed):
                shape = self.specs[module].tables[table]
                rows = rows_to_load(seed, shape.num_rows, shape.dim)
                self.modules[module].weights[shape.name] = rows.astype(np.float64)
            case SetRate(module, lr):
                optimizer = self.modules[module].optimizer
                assert optimizer is not None
                optimizer.numbers["lr"] = lr
            case ReadRows(module):
                return _named(f"module {module}", self.modules[module], _rows_of(self.modules[module]))
            case Deduplicate(module, batch):
                return self._deduplicate(module, self.current_batch(module) if batch is None else batch)
            case Copy(module):
                self.originals.append(self.modules[module])
                self.modules[module] = self.modules[module].copied()
            case Export(module, batch):
                return _outputs(self.modules[module].forward(self.batches[module][batch]))
            case ChangeIds(module, batch, source):
                pairs = zip(self.batches[module][batch], self.batches[module][source], strict=True)
                self.batches[module][batch] = tuple(Bags(new.ids, old.lengths, old.weights) for old, new in pairs)
            case Graphed():
                return self._graphed(operation)
            case _:  # it changes nothing
                pass
        return {}

    def _backward(self, passes: Sequence[NaivelyOpen], scale: float) -> Seen:
        """One optimizer step for each module, unless it accumulates."""
        seen: Seen = {}
        by_module: dict[int, list[tuple[NaivePass, list[Array | None]]]] = {}
        for number, one in enumerate(passes):
            grads = one.grads(scale)
            by_module.setdefault(id(one.found.module), []).append((one.found, grads))
            if one.weights_need_grad:
                grad = np.concatenate(one.found.grads_of_weights(grads))
                seen[f"gradient of weights {number}"] = None if one.found.module.is_uncertain else grad
        for reached in by_module.values():
            module = reached[0][0].module
            if module.gathered is None:
                module.apply(reached)
            else:
                module.gathered += reached
        return seen

    def _end_accumulate(self, module: NaiveModule) -> None:
        gathered, module.gathered = module.gathered, None
        if gathered:
            module.apply(gathered)

    def _next(self, loop: Loop, position: int) -> str:
        return f"batch {position}" if position < len(loop.batches) else loop.end

    def _save(self, module: NaiveModule, what: str) -> tuple[dict[str, Array], Seen]:
        if what == "optimizer":
            assert module.optimizer is not None
            found, seen = {}, Seen()
            for number, one in enumerate(module.optimizer.modules):
                state = {key: rows for key, rows in _rows_of(one).items() if not key.endswith(".weight")}
                found |= {f"{number}.{key}": rows for key, rows in state.items()}
                seen |= _named(f"{number}", one, state)
            return found | {"lr": np.array(module.optimizer.numbers["lr"])}, seen
        is_wanted = what == "weights"
        found = {key: rows for key, rows in _rows_of(module).items() if key.endswith(".weight") == is_wanted}
        return found, _named("saved", module, found)

    def _load(self, save: Save, saved: dict[str, Array]) -> None:
        module = self.modules[save.module]
        if save.what == "weights":
            for table in module.tables:
                module.weights[table.name] = saved[f"{table.name}.weight"].copy()
            return
        if save.what == "state":
            _load_state(module, saved, "")
            return
        assert module.optimizer is not None
        for number, one in enumerate(module.optimizer.modules):
            _load_state(one, saved, f"{number}.")
        module.optimizer.numbers["lr"] = float(saved["lr"])

    def _deduplicate(self, module: int, number: int) -> Seen:
        """The unique ids of every table, and the position of each lookup's id among them."""
        spec, batch = self.specs[module], self.batches[module][number]
        seen: Seen = {}
        feature = 0
        for table in spec.tables:
            bags = batch[feature : feature + table.num_features]
            feature += table.num_features
            by_column = spec.form == "columns"
            ids = np.stack([each.ids for each in bags], 1) if by_column else np.concatenate([b.ids for b in bags])
            unique, inverse = np.unique(ids, return_inverse=True)
            seen[f"{table.name} unique"], seen[f"{table.name} inverse"] = unique, inverse.reshape(ids.shape)
        return seen

    def _graphed(self, operation: Graphed) -> Seen:
        module, seen = self.modules[operation.module], Seen()
        for number, batch in enumerate(operation.batches):
            found = module.forward(self.batches[operation.module][batch])
            one = NaivelyOpen(found, Forward(0, operation.module, batch, operation.seed))
            seen[f"step {number}"] = None
            if not module.is_uncertain:
                loss = 0.0
                for feature, each in enumerate(found.features):
                    pull = pull_of(operation.seed, feature, each.out.shape)
                    loss += float(((pull + 0.5 * SLOPE * each.out) * each.out).sum()) / max(1, each.out.shape[0])
                seen[f"step {number}"] = np.concatenate([[loss], *(each.out.flatten() for each in found.features)])
            module.apply([(found, one.grads(1.0))])
        return seen


def _outputs(found: NaivePass) -> Seen:
    is_known = not found.module.is_uncertain
    return {f"feature {number}": each.out if is_known else None for number, each in enumerate(found.features)}


def _rows_of(module: NaiveModule) -> dict[str, Array]:
    found = {}
    for table in module.tables:
        found[f"{table.name}.weight"] = module.weights[table.name].copy()
        found |= {f"{table.name}.{part}": values for part, values in module.row_state(table.name).items()}
    return found


def _load_state(module: NaiveModule, saved: dict[str, Array], prefix: str) -> None:
    for table in module.tables:
        start = f"{prefix}{table.name}."
        state = {key.removeprefix(start): rows for key, rows in saved.items() if key.startswith(start)}
        module.load_row_state(table.name, state)


def _named(name: str, module: NaiveModule, values: dict[str, Array]) -> Seen:
    """Values of a module under its name. Those that an ambiguous maximum decides are not known."""
    is_known = not module.is_uncertain
    return {
        f"{name}.{key}": rows if is_known or key.endswith(".step") else None for key, rows in values.items()
    }  # fmt: skip
