"""The API calls of a program, and which of them make sense after which."""

from dataclasses import dataclass, field

from tests.programs.modules import Spec


@dataclass(frozen=True)
class Operation:
    """One API call, or a few that belong together. `module` is the number of a module everywhere."""


@dataclass(frozen=True)
class Forward(Operation):
    """A training forward pass.

    Args:
        cloned: give the module a copy of the ids, which `lookahead` does not know.
        first_only: the loss uses the output of the first feature alone.
        early_loss: compute the loss at once, and not in front of the backward pass.
        weights_need_grad: the weights of the lookups, if there are any, require a gradient.
    """

    name: int
    module: int
    batch: int
    seed: int
    cloned: bool = False
    first_only: bool = False
    early_loss: bool = False
    weights_need_grad: bool = False


@dataclass(frozen=True)
class Backward(Operation):
    """One backward pass through the sum of the losses of some forward passes."""

    passes: tuple[int, ...]
    scale: float = 1.0
    retain_graph: bool = False


@dataclass(frozen=True)
class FailingBackward(Operation):
    """A backward pass in which a hook of the user's raises.

    Args:
        at: the forward pass whose loss has the hook; None for the sum of all losses.
    """

    passes: tuple[int, ...]
    at: int | None = None
    retain_graph: bool = False


@dataclass(frozen=True)
class Drop(Operation):
    """Forget forward passes without a backward pass."""

    passes: tuple[int, ...]


@dataclass(frozen=True)
class Read(Operation):
    """A forward pass that does not train: `how` is "no_grad", "inference_mode" or "eval"."""

    module: int
    batch: int
    how: str


@dataclass(frozen=True)
class Loop(Operation):
    """Begin a lookahead loop. Over two modules, it is a loop in a loop.

    Args:
        batches: for each iteration, the batch of each module.
        end: what comes behind the last batch: "stop", "error" (the loader raises) or "bad" (a batch with a bad id).
    """

    name: int
    modules: tuple[int, ...]
    batches: tuple[tuple[int, ...], ...]
    depth: int
    window: int
    end: str = "stop"


@dataclass(frozen=True)
class Next(Operation):
    """The next batch of a loop."""

    loop: int


@dataclass(frozen=True)
class EndLoop(Operation):
    """Leave a loop: `how` is "close" or "forget" (its generator is collected)."""

    loop: int
    how: str


@dataclass(frozen=True)
class Accumulate(Operation):
    """Enter `accumulate()` of a module."""

    module: int


@dataclass(frozen=True)
class EndAccumulate(Operation):
    """Leave `accumulate()`, with an exception if it fails."""

    module: int
    fails: bool = False


@dataclass(frozen=True)
class Mode(Operation):
    """`train(training)`."""

    module: int
    training: bool


@dataclass(frozen=True)
class Save(Operation):
    """Keep a `state_dict`: `what` is "weights", "state" (`row_state` of every table) or "optimizer"."""

    name: int
    module: int
    what: str


@dataclass(frozen=True)
class Load(Operation):
    """Load a kept `state_dict` into the module that it was taken from."""

    name: int


@dataclass(frozen=True)
class LoadWeight(Operation):
    """`load_weight` with other rows for one table."""

    module: int
    table: int
    seed: int


@dataclass(frozen=True)
class SetRate(Operation):
    """Change the learning rate of a module's optimizer."""

    module: int
    lr: float


@dataclass(frozen=True)
class ReadRows(Operation):
    """`weight` and `row_state` of every table."""

    module: int


@dataclass(frozen=True)
class Pin(Operation):
    """`pin` some ids of a table. It may find no room."""

    module: int
    table: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Unpin(Operation):
    module: int


@dataclass(frozen=True)
class Flush(Operation):
    module: int


@dataclass(frozen=True)
class Inspect(Operation):
    """Calls that only tell: `stats`, `cached_rows`, `repr`, and the optimizer's `step` and `zero_grad`."""

    module: int


@dataclass(frozen=True)
class Deduplicate(Operation):
    """The unique ids of a batch; of the current batch of a loop if no batch is given."""

    module: int
    batch: int | None


@dataclass(frozen=True)
class Copy(Operation):
    """Go on with a copy of a module: `how` is "deepcopy" or "pickle". The original is compared at the end."""

    module: int
    how: str


@dataclass(frozen=True)
class Export(Operation):
    """Look a batch up in plain PyTorch modules with the same rows, or, for a bag, in a frozen copy of its rows."""

    module: int
    batch: int
    frozen: bool


@dataclass(frozen=True)
class ChangeIds(Operation):
    """Overwrite the ids of a batch in place with those of another batch of the same shape."""

    module: int
    batch: int
    source: int


@dataclass(frozen=True)
class BadIds(Operation):
    """Look a batch up in which one id is bad; with a backward pass where the error comes later."""

    module: int
    batch: int
    position: int
    trains: bool


@dataclass(frozen=True)
class BadCall(Operation):
    """A call that must raise a clear error and change nothing: `what` is a key of `BAD_CALLS`."""

    module: int
    what: str


@dataclass(frozen=True)
class Graphed(Operation):
    """A whole loop of `hotrows.graphed` steps."""

    module: int
    batches: tuple[int, ...]
    depth: int
    window: int
    seed: int


OPERATIONS: tuple[type[Operation], ...] = (
    Forward, Backward, FailingBackward, Drop, Read, Loop, Next, EndLoop, Accumulate, EndAccumulate, Mode, Save, Load,
    LoadWeight, SetRate, ReadRows, Pin, Unpin, Flush, Inspect, Deduplicate, Copy, Export, ChangeIds, BadIds, BadCall,
    Graphed,
)  # fmt: skip


@dataclass
class OpenForward:
    """A forward pass that can have a backward pass."""

    module: int
    version: int  # how often the module had been replaced by a copy
    uses_all_dims: bool  # its backward pass reaches the tables of every dim
    was_reached: bool = False  # by a backward pass, which has retained its graph


@dataclass
class OpenLoop:
    """A loop that was begun and not left."""

    operation: Loop
    position: int = 0
    version: tuple[int, ...] = ()

    @property
    def has_ended(self) -> bool:
        return self.position > len(self.operation.batches)


@dataclass
class State:
    """What is open at some point of a program, as far as it decides which calls make sense.

    Attributes:
        current: for each module, the loop whose batch is the current one; None if none is.
    """

    specs: tuple[Spec, ...]
    device: str
    version: list[int] = field(default_factory=list)
    training: list[bool] = field(default_factory=list)
    accumulating: set[int] = field(default_factory=set)
    passes: dict[int, OpenForward] = field(default_factory=dict)
    loops: dict[int, OpenLoop] = field(default_factory=dict)
    saved: dict[int, Save] = field(default_factory=dict)
    current: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.version = [0] * len(self.specs)
        self.training = [True] * len(self.specs)
        self.current = [None] * len(self.specs)

    def allows(self, operation: Operation) -> bool:
        """The call has a defined result now."""
        match operation:
            case Forward(name, module):
                return name not in self.passes and self.training[module] and self.specs[module].optimizer is not None
            case Backward(passes):
                return bool(passes) and all(one in self.passes for one in passes)
            case FailingBackward(passes, at):
                return (
                    bool(passes)
                    and all(one in self.passes for one in passes)
                    and (at is None or self._drops_what_was_reached(passes, at))
                )
            case Drop(passes):
                return bool(passes) and all(one in self.passes for one in passes)
            case Loop(name):
                return name not in self.loops
            case Next(loop):
                return loop in self.loops and not self.loops[loop].has_ended
            case EndLoop(loop):
                return loop in self.loops
            case Accumulate(module):
                return module not in self.accumulating and self.specs[module].optimizer is not None
            case EndAccumulate(module):
                return module in self.accumulating
            case Save(module=module, what=what):
                return what != "optimizer" or self.specs[module].optimizer is not None
            case Load(name):
                return name in self.saved
            case SetRate(module):
                return self.specs[module].optimizer is not None
            case Deduplicate(module, batch):
                known = batch is not None or self.current[module] is not None
                return known and self.specs[module].kind == "collection"
            case Copy(module):
                return module not in self.accumulating
            case Export(module, _, frozen):
                return not frozen or self.specs[module].kind == "bag"
            case ChangeIds(module, batch, source):
                before, after = (self.specs[module].batches[number] for number in (batch, source))
                return batch != source and all(
                    a.lengths.tolist() == b.lengths.tolist() for a, b in zip(before, after, strict=True)
                )
            case BadIds(module, batch, trains=trains):
                has_ids = any(bags.ids.size for bags in self.specs[module].batches[batch])
                can_train = self.training[module] and self.specs[module].optimizer is not None
                return has_ids and (can_train or not trains)
            case BadCall(module, what):
                return self._can_be_called_badly(module, what)
            case Graphed(module):
                trains = self.training[module] and self.specs[module].optimizer is not None
                return trains and module not in self.accumulating
            case _:
                return True

    def apply(self, operation: Operation) -> None:
        """The call was made."""
        match operation:
            case Forward(name, module):
                dims = {table.dim for table in self.specs[module].tables}
                uses_all_dims = len(dims) == 1 or not operation.first_only
                self.passes[name] = OpenForward(module, self.version[module], uses_all_dims)
            case Backward(passes, retain_graph=retain) | FailingBackward(passes, retain_graph=retain):
                for one in passes:
                    if retain:
                        self.passes[one].was_reached = True
                    else:
                        del self.passes[one]
            case Drop(passes):
                for one in passes:
                    del self.passes[one]
            case Loop(name, modules):
                self.loops[name] = OpenLoop(operation, version=tuple(self.version[module] for module in modules))
            case Next(loop):
                self._next(loop)
            case EndLoop(loop):
                self._leave(loop)
                del self.loops[loop]
            case Accumulate(module):
                self.accumulating.add(module)
            case EndAccumulate(module):
                self.accumulating.remove(module)
            case Mode(module, training):
                self.training[module] = training
                self.current[module] = self.current[module] if training else None
            case Save(name):
                self.saved[name] = operation
            case Copy(module):
                self.version[module] += 1
                self.current[module] = None
                self.saved = {
                    name: save
                    for name, save in self.saved.items()
                    if save.what != "optimizer" and save.module != module
                }
            case ChangeIds(module):
                self.current[module] = None
            case Graphed(module):
                self.current[module] = None
            case _:
                pass
        if self.device == "cuda" and isinstance(operation, Loop | Next | EndLoop | Graphed):
            # A second backward pass through a batch of a planning graph must come before the loop goes on.
            self.passes = {name: one for name, one in self.passes.items() if not one.was_reached}

    def _next(self, name: int) -> None:
        loop = self.loops[name]
        modules = loop.operation.modules
        loop.position += 1
        for module, version in zip(modules, loop.version, strict=True):
            is_alone = len(modules) == 1 and not loop.has_ended
            is_open = loop.position == 1 or self.current[module] == name
            goes_on = is_alone and is_open and self.training[module] and self.version[module] == version
            if self.version[module] == version and (loop.position == 1 or self.current[module] == name):
                self.current[module] = name if goes_on else None

    def _leave(self, name: int) -> None:
        self.current = [None if loop == name else loop for loop in self.current]

    def _drops_what_was_reached(self, passes: tuple[int, ...], at: int) -> bool:
        """None of these forward passes can be updated before the one with the hook is reached.

        That is so if the backward pass has several open forward passes of one module, whose gradients are gathered for
        the tables of each dim. A forward pass that is the only one with a gradient for a dim is updated at once there.
        """
        found = [self.passes[one] for one in passes]
        return (
            at in passes
            and len({(one.module, one.version) for one in found}) == 1
            and len(found) > 1
            and not any(one.was_reached for one in found)
            and all(one.uses_all_dims for one in found)
            and found[0].module not in self.accumulating
        )

    def _can_be_called_badly(self, module: int, what: str) -> bool:
        spec = self.specs[module]
        if what == "nested accumulate":
            return module in self.accumulating
        if what == "train without optimizer":
            return spec.optimizer is None and self.training[module]
        if what == "weights with mean":
            return spec.mode != "sum" and spec.form != "columns"
        return True
