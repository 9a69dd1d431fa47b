"""Optimizers of the dense part in a recorded step: which there are, and whether they still are as they were recorded.

A recording reads and writes the tensors that were there when it was made, and numbers as they were then. A learning
rate may change because it becomes a tensor; whatever else changes makes the recording worthless.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter, is_
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hotrows.optim import RowOptimizer

CAPTURABLE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


class CannotCaptureError(Exception):
    """Says why a step stays as it is."""


@contextmanager
def observe_optimizers() -> Iterator[tuple[dict[int, torch.optim.Optimizer], list[str]]]:
    """Which optimizers take a step meanwhile, and where the host waits for the device."""
    found: dict[int, torch.optim.Optimizer] = {}
    waits: list[str] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not isinstance(optimizer, RowOptimizer):
            found[id(optimizer)] = optimizer

    handle = register_optimizer_step_pre_hook(note)
    mode = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode(max(mode, 1))
            yield found, waits
        for warning in caught:
            if "synchronizing CUDA operation" in str(warning.message):
                waits.append(f"{Path(warning.filename).name}:{warning.lineno}")
            elif "Synchronization debug mode" not in str(warning.message):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        handle.remove()


class DenseOptimizers:
    """Those that take a step in every call of a training step."""

    def __init__(self) -> None:
        self._all: dict[int, torch.optim.Optimizer] | None = None
        self._noted: list[_Noted] = []

    def found(self, optimizers: dict[int, torch.optim.Optimizer]) -> None:
        """These took a step in a call."""
        if self._all is None:
            for optimizer in optimizers.values():
                make_capturable(optimizer)
            self._all = optimizers
        elif self._all.keys() != optimizers.keys():
            raise CannotCaptureError("not the same optimizers take a step in every call")

    def zero_grad(self) -> None:
        for optimizer in (self._all or {}).values():
            optimizer.zero_grad(set_to_none=True)

    def note(self) -> None:
        """Remember how they are."""
        self._noted = [_Noted(optimizer) for optimizer in (self._all or {}).values()]

    def rate_versions(self) -> list[int]:
        return [rate._version for noted in self._noted for rate in noted.rates]

    def are_as_noted(self) -> bool:
        """Whether what was recorded still holds. A learning rate set anew is put where a recording reads it."""
        for noted in self._noted:  # noqa: SIM110  (takes longer)
            if not noted.holds():
                return False
        return True


class _Noted:
    """An optimizer as it was: its groups and their numbers, its parameters and its state, by identity and address."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._state: dict[Tensor, dict[str, Any]] = optimizer.state
        self._groups = list(optimizer.param_groups)
        for group in self._groups:
            keep_rate_on_device(group)
        self.rates: list[Tensor] = [group["lr"] for group in self._groups]
        self._numbers = [_numbers(group) for group in self._groups]
        self._params = [_identities(group["params"]) for group in self._groups]
        self._states = [
            (param, self._state[param], [pair for pair in self._state[param].items() if isinstance(pair[1], Tensor)])
            for group in self._groups
            for param in group["params"]
            if param in self._state
        ]
        # all there is: also kept so that nothing else gets the identity of a part
        self._objects, *self._facts = _everything(optimizer)

    def holds(self) -> bool:
        """Asked at every step, so written for speed: nearly always it is untouched."""
        objects, *facts = _everything(self._optimizer)
        noted = self._objects
        is_untouched = facts == self._facts and len(objects) == len(noted) and all(map(is_, objects, noted))
        return is_untouched or self._holds_still()

    def _holds_still(self) -> bool:
        """Whether what a recording needs still is there, though something has changed."""
        optimizer, groups = self._optimizer, self._optimizer.param_groups  # loading a state makes new ones
        if optimizer.state is not self._state or len(groups) != len(self._groups):
            return False
        for group, noted, rate in zip(groups, self._groups, self.rates, strict=True):
            if group is not noted:
                return False
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate
        for group, numbers, params in zip(groups, self._numbers, self._params, strict=True):
            for name, number in numbers:
                now = group.get(name)
                if now is not number and (isinstance(now, Tensor) or now != number):
                    return False
            if _identities(group["params"]) != params:
                return False
        for param, state, parts in self._states:
            if self._state.get(param, {}) is not state:
                return False
            for name, part in parts:
                if state.get(name) is not part:
                    return False
        return True


def _everything(optimizer: torch.optim.Optimizer) -> tuple[list[Any], list[Any], list[int], list[bool]]:
    """All objects that an optimizer consists of, and their names; where its parameters are, and whether they train."""
    objects: list[Any] = [optimizer.state]
    names: list[Any] = []
    addresses: list[int] = []
    train: list[bool] = []
    for group in optimizer.param_groups:
        params = group["params"]
        objects += (group,)
        objects += group.values()
        objects += params
        names += group
        addresses += map(Tensor.data_ptr, params)
        train += map(_requires_grad, params)
    for param, state in optimizer.state.items():
        objects += (param, state)
        if isinstance(state, dict):
            objects += state.values()
            names += state
    return objects, names, addresses, train


_requires_grad = attrgetter("requires_grad")


def _identities(params: list[Tensor]) -> tuple[list[int], list[int], list[bool]]:
    """Which parameters, where, and whether they train."""
    return [id(p) for p in params], [p.data_ptr() for p in params], [p.requires_grad for p in params]


def _numbers(group: dict[str, Any]) -> list[tuple[str, Any]]:
    """What a step reads; the rate is a tensor, and its first value a scheduler's."""
    kept = group.keys() - {"params", "initial_lr"}
    return [(name, group[name]) for name in kept if not isinstance(group[name], Tensor)]


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer keep on the device what changes from step to step. Its implementation becomes the fused one."""
    name = type(optimizer).__name__
    if type(optimizer) not in CAPTURABLE:
        known = ", ".join(kind.__name__ for kind in CAPTURABLE)
        raise CannotCaptureError(f"torch.optim.{name} cannot be recorded: use {known} for the dense part")
    for group in optimizer.param_groups:
        params = [param for param in group["params"] if param.requires_grad]
        if any(not param.is_cuda or not param.is_floating_point() for param in params):
            raise CannotCaptureError(f"{name} has parameters that are not on the device, or no floats")
        group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
        keep_rate_on_device(group)
        for param in params:
            steps = optimizer.state[param].get("step") if param in optimizer.state else None
            if steps is not None:
                value = torch.as_tensor(steps, dtype=torch.float32)
                optimizer.state[param]["step"] = value.to(param.device)


def keep_rate_on_device(group: dict[str, Any]) -> None:
    """Make a learning rate a tensor beside the parameters."""
    device = group["params"][0].device if group["params"] else torch.device("cpu")
    if not (isinstance(group["lr"], Tensor) and group["lr"].device == device):
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device, non_blocking=True)
