"""Calls that must raise a clear error and change nothing."""

from typing import Any

import torch

import hotrows
from tests.programs.modules import LibraryBatch, Module, Spec
from tests.programs.must_raise import must_raise


def call_badly(spec: Spec, module: Module, batch: LibraryBatch, what: str) -> None:
    """Make one bad call: `what` is one of `BAD_CALLS`."""
    table = module.tables[0]
    names = [] if isinstance(module, hotrows.EmbeddingBag) else [table.name]
    methods: Any = module  # the two kinds of modules take a table's name or not
    match what:
        case "nested accumulate":
            with must_raise(RuntimeError, r"accumulate\(\) is open already"), module.accumulate():
                pass
        case "train without optimizer":
            with must_raise(ValueError, "these rows have no optimizer: pass optimizer="):
                batch.look_up(module)
        case "weights with mean":
            with must_raise(ValueError, "go with mode 'sum'"), torch.no_grad():
                LibraryBatch(spec, batch.values, batch.structure, torch.ones(batch.values.numel())).look_up(module)
        case "ids that are floats":
            with must_raise(ValueError, r"torch.float32.*give .*int64"), torch.no_grad():
                LibraryBatch(spec, batch.values.float(), batch.structure, batch.weights).look_up(module)
        case "weight of wrong shape":
            with must_raise(ValueError, r"weight is .*, expected \[\d+, \d+\] as a tensor of floats"):
                methods.load_weight(*names, torch.zeros(table.num_rows + 1, spec.tables[0].dim))
        case "state of wrong shape":
            state = module.row_state(table.name)
            parts = {"step": state["step"] + 1} | {part: values[:-1] for part, values in state.items() if values.dim()}
            parts |= {} if len(parts) > 1 else {"sum": torch.zeros(table.num_rows, 1)}
            with must_raise(ValueError, r"state of table .* expected"):
                module.load_row_state(table.name, parts)
        case "pin a bad id":
            with must_raise(hotrows.BadIdError, r"pin: ids from .* has 0 to"):
                methods.pin(*names, [0, table.num_rows])
        case "no such table":
            with must_raise(ValueError, "no table 'nothing': there are "):
                module.row_state("nothing")
        case "bad window":
            with must_raise(ValueError, "window is 65, it must be a whole number from 1 to 64"):
                hotrows.lookahead([], module, window=65)
        case "load a state_dict of wrong shape":
            state = module.state_dict()
            first = next(iter(state))
            with must_raise(RuntimeError, r"weight is .*, expected \[\d+, \d+\]"):
                module.load_state_dict({**state, first: state[first][:, :-1]})
        case _:
            raise NotImplementedError(what)
