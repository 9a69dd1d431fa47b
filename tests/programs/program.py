"""A program is a list of API calls on one or two modules, drawn from a seed.

A program can be printed, run on any machine (`machines.py`), and made shorter.
"""

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.programs.modules import Setting, Spec, draw_setting, draw_spec
from tests.programs.operations import (
    Accumulate,
    Backward,
    BadCall,
    BadIds,
    ChangeIds,
    Copy,
    Deduplicate,
    Drop,
    EndAccumulate,
    EndLoop,
    Export,
    FailingBackward,
    Flush,
    Forward,
    Graphed,
    Inspect,
    Load,
    LoadWeight,
    Loop,
    Mode,
    Next,
    Operation,
    Pin,
    Read,
    ReadRows,
    Save,
    SetRate,
    State,
    Unpin,
)

BAD_CALLS = (
    "nested accumulate", "train without optimizer", "weights with mean", "ids that are floats", "weight of wrong shape",
    "state of wrong shape", "pin a bad id", "no such table", "bad window", "load a state_dict of wrong shape",
)  # fmt: skip
SELDOM_BAD_CALLS = BAD_CALLS[:3]


@dataclass(frozen=True)
class Program:
    """What is called, on which modules.

    Args:
        settings: how the rows of each module are cached.
        looks_ahead_uncached: the run without a cache has its loops too.
    """

    seed: int
    specs: tuple[Spec, ...]
    settings: tuple[Setting, ...]
    looks_ahead_uncached: bool
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [f"program {self.seed}"]
        for number, (spec, setting) in enumerate(zip(self.specs, self.settings, strict=True)):
            lines += [f"  module {number}: {spec}", f"    {setting}"]
        lines += [f"  {number:3}: {described(operation)}" for number, operation in enumerate(self.operations)]
        return "\n".join(lines)

    def without(self, numbers: set[int], device: str) -> "Program":
        """The same program without some operations, and without those that need them."""
        state, kept = State(self.specs, device), list[Operation]()
        for number, operation in enumerate(self.operations):
            if number not in numbers and state.allows(operation):
                state.apply(operation)
                kept.append(operation)
        return replace(self, operations=tuple(kept))


def described(operation: Operation) -> str:
    """The operation with the arguments that are not the usual ones."""
    given = [
        f"{field.name}={getattr(operation, field.name)!r}"
        for field in dataclasses.fields(operation)
        if getattr(operation, field.name) != field.default
    ]
    return f"{type(operation).__name__}({', '.join(given)})"


def draw_program(seed: int, device: str = "cpu") -> Program:
    """The program of a seed."""
    return _Draw(seed, device).program()


class _Draw:
    """Draws one call after the other. Each program has its own likelihood of each kind of call."""

    def __init__(self, seed: int, device: str) -> None:
        self._seed = seed
        self._rng = rng = random.Random(seed)
        self._device = device
        first = draw_spec(rng, None, device)
        self._specs = (first, draw_spec(rng, first, device)) if rng.random() < 0.3 else (first,)
        self._state = State(self._specs, device)
        self._num_names = 0
        often: dict[Callable[[], Operation | None], float] = {
            self._forward: 4, self._backward: 5, self._next: 9, self._loop: 1.0, self._end_loop: 0.5, self._read: 1.5,
            self._failing_backward: 0.7, self._forget_passes: 0.4, self._accumulate: 0.6, self._end_accumulate: 1.0,
            self._mode: 0.8, self._save: 0.5, self._load: 0.5, self._load_weight: 0.3, self._set_rate: 0.4,
            self._read_rows: 0.8, self._pin: 0.5, self._unpin: 0.3, self._flush: 0.3, self._inspect: 0.3,
            self._deduplicate: 0.7, self._copy: 0.3, self._export: 0.3, self._change_ids: 0.2, self._bad_ids: 0.5,
            self._bad_call: 0.3, self._graphed: 0.3,
        }  # fmt: skip
        self._kinds = list(often)
        self._weights = [one if one >= 4 else one * rng.choice([0.2, 1.0, 1.0, 3.0]) for one in often.values()]

    def program(self) -> Program:
        rng, operations = self._rng, list[Operation]()
        length = rng.choice([8, 15, 25, 40])
        while len(operations) < length:
            for operation in self._next_operations():
                if self._state.allows(operation):
                    self._state.apply(operation)
                    operations.append(operation)
        settings = tuple(draw_setting(rng, spec) for spec in self._specs)
        return Program(self._seed, self._specs, settings, rng.random() < 0.3, tuple(operations))

    def _next_operations(self) -> list[Operation]:
        (kind,) = self._rng.choices(self._kinds, self._weights)
        operation = kind()
        if operation is None:
            return []
        found = [operation]
        if isinstance(operation, Next):
            loop = self._state.loops[operation.loop]
            found = self._iteration(loop.operation, loop.position)
        elif isinstance(operation, Loop):
            for position in range(self._rng.choice([0, 1, 3, 6])):
                found += self._iteration(operation, position)
        elif isinstance(operation, Forward) and self._rng.random() < 0.4:
            found.append(Backward((operation.name,)))
        elif isinstance(operation, FailingBackward) and self._rng.random() < 0.5:
            found = self._failing_between()
        elif isinstance(operation, LoadWeight) and self._rng.random() < 0.5:
            forward = self._forward_of(operation.module, self._batch(operation.module))
            found = [forward, operation, Backward((forward.name,))]
        return found

    def _iteration(self, loop: Loop, position: int) -> list[Operation]:
        """The next batch of a loop. Most iterations train it."""
        found: list[Operation] = [Next(loop.name)]
        if position < len(loop.batches):
            names = []
            for module, batch in zip(loop.modules, loop.batches[position], strict=True):
                if self._rng.random() < 0.9:
                    found.append(self._forward_of(module, batch))
                    names.append(self._num_names)
            if names and self._rng.random() < 0.8:
                found.append(Backward(tuple(names), retain_graph=self._rng.random() < 0.1))
        return found

    def _failing_between(self) -> list[Operation]:
        """A backward pass that fails when it has reached one of two forward passes, and one that does not."""
        module = self._module()
        passes = [self._forward_of(module, self._batch(module)) for _ in range(2)]
        first, second = (replace(one, early_loss=True, first_only=False) for one in passes)
        third = self._forward_of(module, self._batch(module))
        failing = FailingBackward((first.name, second.name), first.name, self._rng.random() < 0.5)
        return [first, second, third, failing, Backward((third.name,))]

    def _name(self) -> int:
        self._num_names += 1
        return self._num_names

    def _module(self) -> int:
        return self._rng.randrange(len(self._specs))

    def _batch(self, module: int) -> int:
        return self._rng.randrange(len(self._specs[module].batches))

    def _some(self, names: list[int]) -> tuple[int, ...]:
        """One of them, or several in any order."""
        number = min(len(names), self._rng.choice([1, 1, 2, 2, 3]))
        return tuple(self._rng.sample(names, number))

    def _forward(self) -> Operation:
        module = self._module()
        if self._specs[module].optimizer is None and self._rng.random() < 0.2:
            return BadCall(module, "train without optimizer")
        return self._forward_of(module, self._batch(module))

    def _forward_of(self, module: int, batch: int) -> Forward:
        rng = self._rng
        return Forward(
            self._name(), module, batch, rng.randint(0, 999), cloned=rng.random() < 0.1, first_only=rng.random() < 0.1,
            early_loss=rng.random() < 0.4, weights_need_grad=rng.random() < 0.5,
        )  # fmt: skip

    def _backward(self) -> Operation:
        rng = self._rng
        return Backward(self._some(list(self._state.passes)), rng.choice([1.0, 1.0, 0.5]), rng.random() < 0.2)

    def _failing_backward(self) -> Operation:
        passes = self._some(list(self._state.passes))
        at = self._rng.choice([None, *passes])
        return FailingBackward(passes, at, retain_graph=self._rng.random() < 0.5)

    def _forget_passes(self) -> Operation:
        return Drop(self._some(list(self._state.passes)))

    def _read(self) -> Operation:
        module = self._module()
        how = self._rng.choice(["no_grad", "inference_mode", "eval"])
        return Read(module, self._batch(module), how)

    def _loop(self) -> Operation | None:
        rng = self._rng
        if len(self._state.loops) >= 3:
            return None
        modules = (0, 1) if len(self._specs) == 2 and rng.random() < 0.4 else (self._module(),)
        if len(modules) == 2 and rng.random() < 0.5:
            modules = modules[::-1]
        batches = tuple(tuple(self._batch(module) for module in modules) for _ in range(rng.randint(1, 12)))
        end = rng.choice(["stop", "stop", "stop", "error", "bad"])
        if end == "bad" and (len(modules) == 2 or not any(bags.ids.size for bags in self._bad_batch(modules[0]))):
            end = "stop"
        return Loop(self._name(), modules, batches, rng.choice([0, 1, 2, 4, 7]), rng.choice([1, 2, 4, 8, 32]), end)

    def _bad_batch(self, module: int) -> tuple:  # type: ignore[type-arg]
        return self._specs[module].batches[0]

    def _next(self) -> Operation | None:
        loops = [name for name, loop in self._state.loops.items() if not loop.has_ended]
        return Next(self._rng.choice(loops)) if loops else None

    def _end_loop(self) -> Operation | None:
        loops = list(self._state.loops)
        return EndLoop(self._rng.choice(loops), self._rng.choice(["close", "forget"])) if loops else None

    def _accumulate(self) -> Operation:
        return Accumulate(self._module())

    def _end_accumulate(self) -> Operation:
        return EndAccumulate(self._module(), fails=self._rng.random() < 0.2)

    def _mode(self) -> Operation:
        module = self._module()
        return Mode(module, training=not self._state.training[module] or self._rng.random() < 0.2)

    def _save(self) -> Operation:
        return Save(self._name(), self._module(), self._rng.choice(["weights", "state", "optimizer"]))

    def _load(self) -> Operation | None:
        saved = list(self._state.saved)
        return Load(self._rng.choice(saved)) if saved else None

    def _load_weight(self) -> Operation:
        module = self._module()
        return LoadWeight(module, self._rng.randrange(len(self._specs[module].tables)), self._rng.randint(0, 999))

    def _set_rate(self) -> Operation:
        return SetRate(self._module(), self._rng.choice([0.01, 0.03, 0.08]))

    def _read_rows(self) -> Operation:
        return ReadRows(self._module())

    def _pin(self) -> Operation:
        module = self._module()
        number = self._rng.randrange(len(self._specs[module].tables))
        num_rows = self._specs[module].tables[number].num_rows
        ids = [self._rng.randrange(num_rows) for _ in range(self._rng.randint(0, 3))]
        return Pin(module, number, tuple(ids))

    def _unpin(self) -> Operation:
        return Unpin(self._module())

    def _flush(self) -> Operation:
        return Flush(self._module())

    def _inspect(self) -> Operation:
        return Inspect(self._module())

    def _deduplicate(self) -> Operation:
        module = self._module()
        return Deduplicate(module, self._batch(module) if self._rng.random() < 0.5 else None)

    def _copy(self) -> Operation:
        return Copy(self._module(), self._rng.choice(["deepcopy", "pickle"]))

    def _export(self) -> Operation:
        module = self._module()
        return Export(module, self._batch(module), frozen=self._rng.random() < 0.5)

    def _change_ids(self) -> Operation:
        module = self._module()
        return ChangeIds(module, self._batch(module), self._batch(module))

    def _bad_ids(self) -> Operation:
        module = self._module()
        return BadIds(module, self._batch(module), self._rng.randint(0, 99), self._rng.random() < 0.6)

    def _bad_call(self) -> Operation:
        """One that makes sense now; rather one that seldom does."""
        module, rng = self._module(), self._rng
        found = [what for what in BAD_CALLS if self._state.allows(BadCall(module, what))]
        seldom = [what for what in SELDOM_BAD_CALLS if what in found]
        return BadCall(module, rng.choice(seldom if seldom and rng.random() < 0.7 else found))

    def _graphed(self) -> Operation:
        module, rng = self._module(), self._rng
        batches = tuple(self._batch(module) for _ in range(rng.randint(3, 8)))
        return Graphed(module, batches, rng.choice([0, 2, 4]), rng.choice([4, 16]), rng.randint(0, 999))
