"""Dense optimizers in a captured step: how they are made capturable and restored, and whether they have changed.

A captured step reads and writes the tensors that were there at the capture, and uses numbers as they were then. A
learning rate may change if it is a tensor on the device. After any other change the step must be captured again.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter, is_
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hotrows.optim import RowOptimizer

CAPTURABLE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
ADAPTED = {"fused": True, "foreach": False, "capturable": True}  # settings of an adapted parameter group


class CannotCaptureError(Exception):
    """Says why a step is not captured."""


@contextmanager
def observe_optimizers(
    before_step: Callable[[torch.optim.Optimizer], None],
) -> Iterator[tuple[dict[int, torch.optim.Optimizer], list[str]]]:
    """Note which optimizers take a step inside, by their id, and where the host waits for the device.

    The hook, the debug mode and the filter of warnings that this needs belong to the whole process. They are gone when
    the block ends.

    Args:
        before_step: called with an optimizer before each step that it takes inside.
    """
    found: dict[int, torch.optim.Optimizer] = {}
    waits: list[str] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not isinstance(optimizer, RowOptimizer):
            found[id(optimizer)] = optimizer
            before_step(optimizer)

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
            elif not any(text in str(warning.message) for text in _CAUSED_HERE):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        handle.remove()


# Warnings of PyTorch that hotrows causes: the debug mode is a prototype, and an adapted optimizer takes eager steps.
_CAUSED_HERE = ("Synchronization debug mode", "constructed with capturable=True")


class DenseOptimizers:
    """The optimizers that take a step in every call of a training step.

    Args:
        device_type: of the parameters.
        adapts: make optimizers capturable; otherwise they must be so already.
    """

    def __init__(self, device_type: str, adapts: bool) -> None:
        self._device_type = device_type
        self._adapts = adapts
        self._all: dict[int, AdaptedOptimizer] | None = None
        self._snapshots: list[_Snapshot] = []

    def found(self, optimizers: dict[int, torch.optim.Optimizer]) -> None:
        """These optimizers took a step in a call. Raises `CannotCaptureError` if that cannot be captured."""
        if self._all is not None and self._all.keys() != optimizers.keys():
            raise CannotCaptureError("not the same optimizers take a step in every call")
        for optimizer in optimizers.values():
            check_capturable(optimizer, self._device_type)
            if not self._adapts:
                _check_settings(optimizer)
        if self._all is None:
            self._all = {key: AdaptedOptimizer(optimizer, self._adapts) for key, optimizer in optimizers.items()}
        for adapted in self._all.values():
            adapted.adapt()

    def zero_grad(self) -> None:
        for adapted in (self._all or {}).values():
            adapted.optimizer.zero_grad(set_to_none=True)

    def note(self) -> None:
        """Note the state of the optimizers, for `are_unchanged`."""
        self._snapshots = [_Snapshot(adapted) for adapted in (self._all or {}).values()]

    def rate_versions(self) -> list[int]:
        """How often each learning rate was changed in place."""
        return [rate._version for snapshot in self._snapshots for rate in snapshot.rates]

    def are_unchanged(self) -> bool:
        """True if what was captured still holds. A learning rate that was assigned is copied to the captured one."""
        for snapshot in self._snapshots:  # noqa: SIM110  (a generator is slower)
            if not snapshot.holds():
                return False
        return True

    def restore(self) -> None:
        """Undo what adapting the optimizers has changed. Waits for the device."""
        for adapted in (self._all or {}).values():
            adapted.restore()
        self._all, self._snapshots = {}, []


class AdaptedOptimizer:
    """An optimizer whose settings suit a capture, and what they were before.

    Adapting sets `ADAPTED` in each parameter group and moves the learning rate and the step counts to the device.

    Args:
        adapts: False changes nothing.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, adapts: bool = True) -> None:
        self.optimizer = optimizer
        self.adapts = adapts
        self._before: list[_GroupBefore] = []

    def adapt(self) -> None:
        """Adapt every parameter group; also groups that were added, or loaded with a state, since the last call."""
        if not self.adapts:
            return
        for position, group in enumerate(self.optimizer.param_groups):
            if position == len(self._before):
                self._before.append(_GroupBefore(group))
            group["fused"], group["foreach"] = ADAPTED["fused"], ADAPTED["foreach"]
            if "capturable" in group:
                group["capturable"] = ADAPTED["capturable"]
            self._before[position].move_rate(group)
            self._move_steps(group)

    def assign_rate(self, position: int, rate: Tensor) -> None:
        """The user has assigned a learning rate to a group: make it the value of the captured tensor."""
        group = self.optimizer.param_groups[position]
        self._before[position].note_assigned(group["lr"])
        rate.fill_(group["lr"])
        group["lr"] = rate

    def restore(self) -> None:
        """Give each group its own settings, with the present learning rate, and put step counts where these have them.

        Settings that the user has changed since stay.
        """
        for group, before in zip(self.optimizer.param_groups, self._before, strict=False):
            before.restore(group)
            self._move_steps(group)
        self._before = []

    def _move_steps(self, group: dict[str, Any]) -> None:
        """Put the step counts where PyTorch has them with the settings of this group."""
        on_device = bool(group.get("fused") or group.get("capturable"))
        is_double = not on_device and torch.get_default_dtype() == torch.float64
        for param in group["params"]:
            state = self.optimizer.state.get(param)
            if state is not None and state.get("step") is not None:
                steps = torch.as_tensor(state["step"], dtype=torch.float64 if is_double else torch.float32)
                state["step"] = steps.to(param.device if on_device else "cpu")


class _GroupBefore:
    """The settings of a parameter group before it was adapted."""

    def __init__(self, group: dict[str, Any]) -> None:
        self._settings = {name: group[name] for name in ADAPTED if name in group}
        self._rate: float | Tensor = group["lr"]
        self._made: Tensor | None = None  # the rate on the device
        self._assigned: float | None = None  # the number, in double precision, that was last copied to it

    def move_rate(self, group: dict[str, Any]) -> None:
        """Make the learning rate a tensor on the device of the parameters."""
        rate = group["lr"]
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        if not (isinstance(rate, Tensor) and rate.device == device):
            self.note_assigned(rate)
            group["lr"] = self._made = torch.as_tensor(rate, dtype=torch.float32).to(device, non_blocking=True)

    def note_assigned(self, rate: float | Tensor) -> None:
        self._assigned = None if isinstance(rate, Tensor) else float(rate)

    def restore(self, group: dict[str, Any]) -> None:
        for name, value in self._settings.items():
            if group.get(name) == ADAPTED[name]:
                group[name] = value
        rate = group["lr"]
        if not isinstance(rate, Tensor):
            return
        if not isinstance(self._rate, Tensor):
            group["lr"] = self._exact(float(rate))
        elif rate is self._made:
            group["lr"] = self._rate.copy_(rate)

    def _exact(self, rate: float) -> float:
        """The number that was assigned, if the float32 on the device still is that number rounded."""
        assigned = self._assigned
        return rate if assigned is None or torch.tensor(assigned, dtype=torch.float32).item() != rate else assigned


class _Snapshot:
    """An optimizer at one time: its groups and their numbers, its parameters and its state, by identity and address."""

    def __init__(self, adapted: AdaptedOptimizer) -> None:
        self._adapted = adapted
        optimizer = adapted.optimizer
        self._optimizer = optimizer
        self._state: dict[Tensor, dict[str, Any]] = optimizer.state
        self._groups = list(optimizer.param_groups)
        self.rates: list[Tensor] = [group["lr"] for group in self._groups]
        self._numbers = [_numbers(group) for group in self._groups]
        self._params = [_identities(group["params"]) for group in self._groups]
        self._states = [
            (param, self._state[param], [pair for pair in self._state[param].items() if isinstance(pair[1], Tensor)])
            for group in self._groups
            for param in group["params"]
            if param in self._state
        ]
        # All objects are kept alive, so that no new object can have the identity of an old one.
        self._objects, *self._facts = _everything(optimizer)

    def holds(self) -> bool:
        """True if nothing has changed that a captured step depends on.

        This is called before every step and written for speed: nearly always nothing has changed at all.
        """
        objects, *facts = _everything(self._optimizer)
        noted = self._objects
        is_untouched = facts == self._facts and len(objects) == len(noted) and all(map(is_, objects, noted))
        return is_untouched or self._still_holds()

    def _still_holds(self) -> bool:
        """True if what a captured step needs is there, although something has changed."""
        optimizer, groups = self._optimizer, self._optimizer.param_groups  # loading a state makes new ones
        if optimizer.state is not self._state or len(groups) != len(self._groups):
            return False
        for position, (group, noted, rate) in enumerate(zip(groups, self._groups, self.rates, strict=True)):
            if group is not noted:
                return False
            if group["lr"] is not rate:
                if not self._adapted.adapts:
                    return False
                self._adapted.assign_rate(position, rate)
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
    """All objects that an optimizer consists of, their names, the addresses of its parameters, and which of them train."""
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
    """Which parameters there are, their addresses, and which of them train."""
    return [id(p) for p in params], [p.data_ptr() for p in params], [p.requires_grad for p in params]


def _numbers(group: dict[str, Any]) -> list[tuple[str, Any]]:
    """The numbers that a step reads. The learning rate is a tensor, and a scheduler alone reads its first value."""
    kept = group.keys() - {"params", "initial_lr"}
    return [(name, group[name]) for name in kept if not isinstance(group[name], Tensor)]


def make_capturable(optimizer: torch.optim.Optimizer) -> AdaptedOptimizer:
    """Adapt an optimizer to captures: PyTorch's fused implementation takes its steps, and their state is on the device.

    Raises:
        CannotCaptureError: it cannot be captured whatever its settings are. It is unchanged then.
    """
    check_capturable(optimizer, "cuda")
    adapted = AdaptedOptimizer(optimizer)
    adapted.adapt()
    return adapted


def check_capturable(optimizer: torch.optim.Optimizer, device_type: str) -> None:
    """Raise `CannotCaptureError` if an optimizer cannot be made capturable."""
    name = type(optimizer).__name__
    if type(optimizer) not in CAPTURABLE:
        known = ", ".join(kind.__name__ for kind in CAPTURABLE)
        raise CannotCaptureError(f"torch.optim.{name} cannot be captured: use {known} for the dense part")
    for group in optimizer.param_groups:
        params = [param for param in group["params"] if param.requires_grad]
        if any(param.device.type != device_type or not param.is_floating_point() for param in params):
            raise CannotCaptureError(f"{name} has parameters that are not on the device, or no floats")
        if any(param.grad is not None and param.grad.is_sparse for param in params):
            raise CannotCaptureError(f"{name} has sparse gradients, which its fused implementation does not take")
        if group.get("differentiable"):
            raise CannotCaptureError(f"{name} is differentiable, which its fused implementation is not")


def _check_settings(optimizer: torch.optim.Optimizer) -> None:
    """Raise `CannotCaptureError` if an optimizer is not capturable with its settings."""
    name = type(optimizer).__name__
    for group in optimizer.param_groups:
        device = group["params"][0].device if group["params"] else None
        if not isinstance(group["lr"], Tensor) or device not in (None, group["lr"].device):
            raise CannotCaptureError(
                f"the learning rate of {name} is not a tensor on the device: make it one, or let "
                "adapt_optimizers=True do so"
            )
        if not group.get("capturable", True):
            raise CannotCaptureError(f"{name} is not capturable: pass capturable=True, or let adapt_optimizers=True do so")
