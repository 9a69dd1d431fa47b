"""Runs a program on the library, with any cache."""

import copy
import gc
import pickle
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import hotrows
from hotrows.loop.scheduler import Scheduler
from tests.programs.bad_calls import call_badly
from tests.programs.losses import LibraryOpen, loss_of, pulls_of
from tests.programs.machines import Machine, Seen, rows_to_load
from tests.programs.modules import STORES, LibraryBatch, Module, Setting, make_module, make_optimizer
from tests.programs.must_raise import must_raise
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
    Unpin,
)
from tests.programs.program import Program


class UsersError(Exception):
    """Raised by a hook, a loader or a block of the program, as a user's code may."""


class LibraryMachine(Machine):
    """Runs a program on the library.

    Args:
        settings: how the rows of each module are cached.
        looks_ahead: loops are those of `hotrows.lookahead` and steps those of `hotrows.graphed`. Otherwise they are
            plain loops and steps, in which only what the user's loader raises is raised.
    """

    def __init__(self, program: Program, device: str, settings: Sequence[Setting], looks_ahead: bool) -> None:
        super().__init__(program, device)
        self.settings = settings
        self.device = device
        self.looks_ahead = looks_ahead
        self.modules: list[Module] = []
        for spec, setting in zip(program.specs, settings, strict=True):
            optimizer = self.modules[-1].optimizer if spec.shared else make_optimizer(spec)
            self.modules.append(make_module(spec, setting, optimizer, device))
        self.originals: list[Module] = []
        self.batches = [
            [LibraryBatch.of(spec, batch, device if setting.on_device else "cpu") for batch in spec.batches]
            for spec, setting in zip(program.specs, settings, strict=True)
        ]
        self.passes: dict[int, LibraryOpen] = {}
        self.loops: dict[int, Iterator[tuple[LibraryBatch, ...]]] = {}
        self.loops_over: dict[int, tuple[Module, ...]] = {}  # for each loop, the modules that it looks ahead for
        self.announcing: dict[int, Module] = {}  # loops that have looked ahead without a break, and their modules
        self.accumulating: dict[int, AbstractContextManager[None]] = {}
        self.saved: dict[int, Any] = {}

    def rows(self) -> Seen:
        seen: Seen = {}
        for number, module in enumerate([*self.modules, *self.originals]):
            seen |= rows_of(number, module)
        return seen

    def drop_closed(self) -> None:
        self.passes = {name: one for name, one in self.passes.items() if name in self.state.passes}
        self.loops = {name: loop for name, loop in self.loops.items() if name in self.state.loops}

    def finish(self) -> Seen:
        """Leave all that is open. The rows are the same before and after loops are closed."""
        for module in sorted(self.accumulating):
            self.accumulating.pop(module).__exit__(None, None, None)
        seen = self.rows()
        self.passes.clear()
        for loop in self.loops.values():
            loop.close()  # type: ignore[attr-defined]
        after = self.rows()
        is_same = [torch.equal(one, after[key]) for key, one in seen.items() if isinstance(one, Tensor)]  # type: ignore[arg-type]
        assert all(is_same), "closing a loop has changed rows"
        drop_failed_backward_pass(self.device)
        for module in [*self.modules, *self.originals]:
            for scheduler in module.schedulers:
                assert frees_all_slots(scheduler), "a batch is in flight, although nothing is open"
        return seen

    def carry_out(self, operation: Operation) -> Seen:
        match operation:
            case Forward():
                return self._forward(operation)
            case Backward():
                return self._backward(operation)
            case FailingBackward():
                self._fail_backward(operation)
            case Read(module, batch, how):
                return self._read(self.modules[module], self.batches[module][batch], how)
            case Loop(name):
                self.loops[name] = self._loop(operation)
            case Next(loop):
                return {"found": self._next(loop)}
            case EndLoop(loop, how):
                if how == "close":
                    self.loops[loop].close()  # type: ignore[attr-defined]
            case Accumulate(module):
                self.accumulating[module] = self.modules[module].accumulate()
                self.accumulating[module].__enter__()
            case EndAccumulate(module, fails):
                self._end_accumulate(module, fails)
            case Mode(module, training):
                self.modules[module].train(training)
                if not training:
                    self._break_loops(self.modules[module])
            case Export(module, batch, frozen):
                return self._export(module, self.batches[module][batch], frozen)
            case BadIds():
                self._look_up_bad_ids(operation)
            case BadCall(module, what):
                call_badly(self.specs[module], self.modules[module], self.batches[module][0], what)
            case Graphed():
                return self._graphed(operation)
            case Drop():
                pass  # `drop_closed` follows
            case _:
                return self._change(operation)
        return {}

    def _change(self, operation: Operation) -> Seen:
        """Calls that concern whole tables, a module or the ids of a batch."""
        match operation:
            case Save(name, module, what):
                return self._save(name, module, what)
            case Load(name):
                self._load(self.state.saved[name], self.saved[name])
            case LoadWeight(module, table, seed):
                shape = self.specs[module].tables[table]
                rows = torch.from_numpy(rows_to_load(seed, shape.num_rows, shape.dim))
                self._of_table(module, "load_weight", table, rows)
            case SetRate(module, lr):
                self._optimizer(module).param_groups[0]["lr"] = lr
            case ReadRows(module):
                return rows_of(module, self.modules[module])
            case Pin(module, table, ids):
                self._pin(module, table, list(ids))
            case Unpin(module):
                self.modules[module].unpin()
            case Flush(module):
                self.modules[module].flush()
            case Inspect(module):
                self._inspect(module)
            case Deduplicate(module, batch):
                return self._deduplicate(module, batch)
            case Copy(module, how):
                self._copy(module, how)
            case ChangeIds(module, batch, source):
                self.batches[module][batch].values.copy_(self.batches[module][source].values)
            case _:
                raise NotImplementedError(operation)
        return {}

    # -- training ---------------------------------------------------------------------------------------------------

    def _forward(self, operation: Forward) -> Seen:
        batch = self.batches[operation.module][operation.batch]
        if operation.cloned:
            batch = replace(batch, values=batch.values.clone())
        weights = None
        if batch.weights is not None and operation.weights_need_grad:
            weights = batch.weights.clone().requires_grad_()
            batch = replace(batch, weights=weights)
        outputs = batch.look_up(self.modules[operation.module])
        assert all(out.requires_grad for out in outputs)
        self.passes[operation.name] = LibraryOpen(outputs, operation, weights)
        return _outputs(outputs)

    def _backward(self, operation: Backward) -> Seen:
        passes = [self.passes[name] for name in operation.passes]
        total = torch.stack([one.loss() for one in passes]).sum() * operation.scale
        total.backward(retain_graph=operation.retain_graph)
        seen: Seen = {}
        for number, one in enumerate(passes):
            if one.weights is not None:
                seen[f"gradient of weights {number}"], one.weights.grad = one.weights.grad, None
        return seen

    def _fail_backward(self, operation: FailingBackward) -> None:
        passes = {name: self.passes[name] for name in operation.passes}
        losses = {name: one.loss() for name, one in passes.items()}
        total = torch.stack(list(losses.values())).sum()
        hook = (total if operation.at is None else losses[operation.at]).register_hook(_raise_users_error)
        with must_raise(UsersError, "a hook"):
            total.backward(retain_graph=operation.retain_graph)
        hook.remove()
        for one in passes.values():
            if one.weights is not None:
                one.weights.grad = None

    def _end_accumulate(self, module: int, fails: bool) -> None:
        block = self.accumulating.pop(module)
        if not fails:
            block.__exit__(None, None, None)
            return
        error = UsersError("in accumulate()")
        with must_raise(UsersError, "in accumulate"):
            if not block.__exit__(UsersError, error, None):
                raise error

    def _graphed(self, operation: Graphed) -> Seen:
        number, module = operation.module, self.modules[operation.module]
        batches = [self.batches[number][batch] for batch in operation.batches]
        pulls: dict[int, list[Tensor]] = {}  # by the number of samples, because a capture must not copy from the host
        dims = [table.dim for table in self.specs[number].tables_of_features]
        for batch in operation.batches:
            num_samples = self.specs[number].batches[batch][0].lengths.size
            outputs = [torch.empty(num_samples, dim, device=module.device) for dim in dims]
            pulls[num_samples] = pulls_of(operation.seed, outputs)

        def step(tensors: tuple[Tensor, ...]) -> Tensor:
            outputs = batches[0].with_tensors(tensors).look_up(module)
            loss = loss_of(outputs, pulls[outputs[0].shape[0]])
            loss.backward()
            return torch.cat([loss.detach().reshape(1), *(out.detach().flatten() for out in outputs)])

        items = [batch.tensors for batch in batches]
        if not self.looks_ahead:
            return {f"step {at}": step(item) for at, item in enumerate(items)}
        self._break_loops(module)
        loop = hotrows.lookahead(
            items, module, operation.depth, operation.window, lambda item: batches[0].with_tensors(item).ids
        )
        with hotrows.graphed(step, module) as replayed:
            return {f"step {at}": replayed(item) for at, item in enumerate(loop)}

    # -- loops ------------------------------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> Iterator[tuple[LibraryBatch, ...]]:
        def loader() -> Iterator[tuple[LibraryBatch, ...]]:
            for numbers in loop.batches:
                yield tuple(self.batches[module][batch] for module, batch in zip(loop.modules, numbers, strict=True))
            if loop.end == "error":
                raise UsersError("the loader's")
            if loop.end == "bad":
                yield (self.batches[loop.modules[0]][0].with_bad_id(0),)

        batches = loader()
        self.loops_over[loop.name] = modules = tuple(self.modules[module] for module in loop.modules)
        for position, module in enumerate(modules if self.looks_ahead else ()):
            batches = hotrows.lookahead(
                batches, module, loop.depth, loop.window,
                lambda found, position=position: found[position].ids,  # type: ignore[misc]
            )  # fmt: skip
        return batches

    def _next(self, name: int) -> str:
        """Take the next batch of a loop, which must be the right one."""
        opened = self.state.loops[name]
        loop, position = opened.operation, opened.position
        if position == 0:
            self._note_begin(name)
        expected = "batch" if position < len(loop.batches) else loop.end
        try:
            found = next(self.loops[name])
        except StopIteration:
            assert expected == "stop", f"the loop has ended, expected {expected}"
        except UsersError:
            assert expected == "error", f"the loader's error was raised, expected {expected}"
        except hotrows.BadIdError:
            assert expected == "bad", f"a bad id was found, expected {expected}"
        else:
            assert expected in ("batch", "bad"), f"a batch came, expected {expected}"
            if expected == "batch":
                wanted = [self.batches[m][n] for m, n in zip(loop.modules, loop.batches[position], strict=True)]
                assert all(a is b for a, b in zip(found, wanted, strict=True)), "this is another batch"
                return f"batch {position}"
            assert name not in self.announcing, "the batch with a bad id came, although it was announced"
        return expected

    def _note_begin(self, name: int) -> None:
        """A loop reads its first batches. It ends the loop that was open before on its module."""
        modules = [module for module in self.loops_over[name] if self.looks_ahead and module.training]
        for module in modules:
            self._break_loops(module)
        if modules and len(self.loops_over[name]) == 1:
            self.announcing[name] = modules[0]

    def _break_loops(self, module: Module) -> None:
        """The loops over a module need not announce their batches any more."""
        self.announcing = {name: other for name, other in self.announcing.items() if other is not module}

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(self, module: Module, batch: LibraryBatch, how: str) -> Seen:
        if how == "eval":
            was_training = module.training
            module.eval()
            outputs = batch.look_up(module)
            module.train(was_training)
        else:
            with torch.no_grad() if how == "no_grad" else torch.inference_mode():
                outputs = [out.clone() for out in batch.look_up(module)]
        needs_grad = how == "eval" and module.optimizer is not None  # as in PyTorch, where the weights need it
        assert all(out.requires_grad == needs_grad for out in outputs)
        return _outputs(outputs)

    def _export(self, number: int, batch: LibraryBatch, frozen: bool) -> Seen:
        module, setting = self.modules[number], self.settings[number]
        if not frozen:
            if isinstance(module, hotrows.EmbeddingBag):
                return _outputs(batch.look_up_in_torch({"weight": module.to_embedding_bag()}))
            return _outputs(batch.look_up_in_torch(module.to_embedding_bags()))
        assert isinstance(module, hotrows.EmbeddingBag)
        bag = hotrows.EmbeddingBag.from_pretrained(
            module.weight(), mode=module.mode, include_last_offset=module.include_last_offset,
            padding_idx=module.padding_idx, cache=setting.cache, policy=setting.policy, index=setting.index,
            store=STORES[setting.store], device=self.device,
        )  # fmt: skip
        outputs = batch.look_up(bag)
        assert not any(out.requires_grad for out in outputs)
        return _outputs(outputs)

    def _inspect(self, number: int) -> None:
        module = self.modules[number]
        assert module.stats().unique >= 0
        num_cached = module.cached_rows()
        for table in module.tables:
            assert 0 <= num_cached[table.name] <= table.num_rows
        assert "table(s)" in repr(module)
        if module.optimizer is not None:
            module.optimizer.step()
            module.optimizer.zero_grad()

    def _deduplicate(self, number: int, batch: int | None) -> Seen:
        module = self.modules[number]
        assert isinstance(module, hotrows.EmbeddingBagCollection)
        if batch is None and self.looks_ahead:
            found = module.deduplicate()
        else:
            found = module.deduplicate(self.batches[number][self.current_batch(number) if batch is None else batch].ids)
        seen: Seen = {}
        for name, one in found.items():
            seen[f"{name} unique"], seen[f"{name} inverse"] = one.unique_ids, one.inverse
        return seen

    def _look_up_bad_ids(self, operation: BadIds) -> None:
        """On a GPU the error may come later, at the latest in `flush`."""
        module = self.modules[operation.module]
        good = self.batches[operation.module][operation.batch]
        batch = good.with_bad_id(operation.position)
        (bad_id,) = batch.values[batch.values != good.values].tolist()
        with must_raise(hotrows.BadIdError, rf"\b{bad_id}\b" if bad_id >= 0 else str(bad_id)):
            if operation.trains:
                outputs = batch.look_up(module)
                loss_of(outputs, pulls_of(0, outputs)).backward()
            else:
                with torch.no_grad():
                    batch.look_up(module)
            module.flush()

    # -- tables and modules -----------------------------------------------------------------------------------------

    def _of_table(self, number: int, what: str, table: int, *arguments: Any) -> Any:
        """Call a method about one table, which takes its name unless there is only one."""
        module = self.modules[number]
        names = [] if isinstance(module, hotrows.EmbeddingBag) else [module.tables[table].name]
        return getattr(module, what)(*names, *arguments)

    def _optimizer(self, module: int) -> hotrows.optim.RowOptimizer:
        optimizer = self.modules[module].optimizer
        assert optimizer is not None
        return optimizer

    def _save(self, name: int, number: int, what: str) -> Seen:
        module = self.modules[number]
        if what == "optimizer":
            self.saved[name] = kept = self._optimizer(number).state_dict()
            return {f"{table}.{part}": rows for table, state in kept["state"].items() for part, rows in state.items()}
        if what == "weights":
            self.saved[name] = kept = module.state_dict()
            is_bag = isinstance(module, hotrows.EmbeddingBag)
            return {f"saved.weight.{key}" if is_bag else f"saved.{key}": rows for key, rows in kept.items()}
        self.saved[name] = kept = {table.name: module.row_state(table.name) for table in module.tables}
        return {f"saved.{table}.{part}": rows for table, state in kept.items() for part, rows in state.items()}

    def _load(self, save: Save, saved: Any) -> None:
        module = self.modules[save.module]
        if save.what == "optimizer":
            self._optimizer(save.module).load_state_dict(saved)
        elif save.what == "weights":
            module.load_state_dict(saved)
        else:
            for table, state in saved.items():
                module.load_row_state(table, state)

    def _pin(self, number: int, table: int, ids: list[int]) -> None:
        """Pinned rows may find no room. That must be said, and change nothing."""
        try:
            self._of_table(number, "pin", table, ids)
        except hotrows.BadIdError:
            raise
        except ValueError as error:
            if not re.search("finds? no (slot|room)", str(error)):
                raise

    def _copy(self, number: int, how: str) -> None:
        module = self.modules[number]
        copied: Module = copy.deepcopy(module) if how == "deepcopy" else pickle.loads(pickle.dumps(module))
        for scheduler in copied.schedulers:
            scheduler.coalesce = self.settings[number].coalesce
        self.originals.append(module)
        self.modules[number] = copied


def rows_of(number: int, module: Module) -> Seen:
    """All rows and row states of a module, under its number."""
    seen: Seen = {}
    for table in module.tables:
        is_bag = isinstance(module, hotrows.EmbeddingBag)
        seen[f"module {number}.{table.name}.weight"] = module.weight() if is_bag else module.weight(table.name)
        for part, values in module.row_state(table.name).items():
            seen[f"module {number}.{table.name}.{part}"] = values
    return seen


def drop_failed_backward_pass(device: str) -> None:
    """PyTorch keeps the nodes that a failed backward pass has not reached until the next one in the same thread.

    Nodes on a GPU run in a thread of their own.
    """
    for each in {"cpu", device}:
        torch.zeros(1, requires_grad=True, device=each).sum().backward()


def frees_all_slots(scheduler: Scheduler) -> bool:
    """No batch is in flight, perhaps after a while: on a GPU, autograd frees such nodes in a thread of its own.

    From Python 3.12 on, an exception that leaves a `with` block of a generator is part of a cycle with the frames that
    it went through, and these refer to the graph of the failed backward pass.
    """
    give_up = time.monotonic() + 5.0
    while True:
        if scheduler.in_flight:
            gc.collect()
        scheduler.catch_up()
        if not scheduler.in_flight or time.monotonic() > give_up:
            return not scheduler.in_flight
        time.sleep(0.001)


def _outputs(outputs: Sequence[Tensor]) -> Seen:
    return {f"feature {number}": out.detach() for number, out in enumerate(outputs)}


def _raise_users_error(grad: Tensor) -> None:
    raise UsersError("a hook")
