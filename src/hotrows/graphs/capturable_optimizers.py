"""Dense optimizers in a captured step: finds them, makes them capturable, and undoes that again."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from hotrows.graphs.optimizer_snapshot import OptimizerSnapshot
from hotrows.optim import RowOptimizer
from hotrows.runtime.defer_sigint import defer_sigint

CAPTURABLE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
ADAPTED = {"fused": True, "foreach": False, "capturable": True}  # settings of an adapted parameter group


class CannotCaptureError(Exception):
    """Says why a step is not captured."""


@contextmanager
def observe_optimizers(
    before_step: Callable[[torch.optim.Optimizer], None],
) -> Iterator[tuple[dict[int, torch.optim.Optimizer], list[str]]]:
    """Note which optimizers take a step inside the block, by their id, and where the host waits for the device.

    This sets a hook, a debug mode and a filter of warnings for the whole process, and takes them back when the block
    ends.

    Args:
        before_step: called with an optimizer before each step that it takes inside.
    """
    found: dict[int, torch.optim.Optimizer] = {}
    waits: list[str] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not isinstance(optimizer, RowOptimizer):
            found[id(optimizer)] = optimizer
            before_step(optimizer)

    handle: RemovableHandle | None = None
    mode = torch.cuda.get_sync_debug_mode()
    try:
        with defer_sigint():  # so that no Ctrl-C comes between registering the hook and assigning its handle
            handle = register_optimizer_step_pre_hook(note)
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
        with defer_sigint():
            torch.cuda.set_sync_debug_mode(mode)
            if handle is not None:
                handle.remove()


# PyTorch warns that the debug mode is a prototype, and that an adapted optimizer takes eager steps. Both are hotrows'
# doing, so the user does not see these warnings.
_CAUSED_HERE = ("Synchronization debug mode", "constructed with capturable=True")


class DenseOptimizers:
    """The dense optimizers whose `step()` the training step calls, the same ones in every call.

    Args:
        device_type: of the parameters.
        adapts: make optimizers capturable; otherwise they must be so already.
    """

    def __init__(self, device_type: str, adapts: bool) -> None:
        self._device_type = device_type
        self._adapts = adapts
        self._all: dict[int, AdaptedOptimizer] | None = None
        self._snapshots: list[OptimizerSnapshot] = []

    def found(self, optimizers: dict[int, torch.optim.Optimizer]) -> None:
        """Register the optimizers that stepped in one call of the training step, and adapt them.

        Raises:
            CannotCaptureError: one of them cannot be captured, or they are not those of earlier calls.
        """
        if self._all is not None and self._all.keys() != optimizers.keys():
            raise CannotCaptureError("the step does not call the same optimizers every time")
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
        """Take a snapshot of each optimizer, with which `are_unchanged` compares it."""
        self._snapshots = [
            OptimizerSnapshot(adapted.optimizer, adapted.assign_rate if adapted.adapts else None)
            for adapted in (self._all or {}).values()
        ]

    def rate_versions(self) -> list[int]:
        """How often each learning rate was changed in place."""
        return [rate._version for snapshot in self._snapshots for rate in snapshot.rates]

    def are_unchanged(self) -> bool:
        """True if captures of the step may still be replayed.

        If the user has assigned a learning rate, its value is copied to the captured tensor.
        """
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
    """An optimizer with settings that suit a capture, and the settings that it had before.

    Adapting sets `ADAPTED` in each parameter group and moves the learning rate and the step counts to the device.

    Args:
        adapts: with False, nothing is changed.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, adapts: bool = True) -> None:
        self.optimizer = optimizer
        self.adapts = adapts
        self._before: list[_GroupBefore] = []

    def adapt(self) -> None:
        """Adapt every parameter group, also those that were added, or came with a loaded state, since the last call."""
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
        """Give each group back the settings that it had, and move its step counts to where they belong with these.

        The learning rate keeps its present value. Settings that the user has changed meanwhile stay.
        """
        for group, before in zip(self.optimizer.param_groups, self._before, strict=False):
            before.restore(group)
            self._move_steps(group)
        self._before = []

    def _move_steps(self, group: dict[str, Any]) -> None:
        """Move the step counts to the device on which PyTorch expects them with the settings of this group."""
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
        self._made: Tensor | None = None  # the learning rate on the device, if this object made that tensor
        self._assigned: float | None = None  # the number, in double precision, that was last copied to the device

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
        """The assigned learning rate in double precision, if `rate` is its float32 rounding. Otherwise `rate`."""
        assigned = self._assigned
        return rate if assigned is None or torch.tensor(assigned, dtype=torch.float32).item() != rate else assigned


def make_capturable(optimizer: torch.optim.Optimizer) -> AdaptedOptimizer:
    """Adapt an optimizer to captures.

    From then on it uses PyTorch's fused implementation, and its learning rate and step counts are on the device.

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
        raise CannotCaptureError(f"{name} cannot be captured: use {known} of torch.optim for the dense part")
    for group in optimizer.param_groups:
        params = [param for param in group["params"] if param.requires_grad]
        if any(param.device.type != device_type or not param.is_floating_point() for param in params):
            raise CannotCaptureError(f"{name} has parameters that are not on the device, or are not floats")
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
            raise CannotCaptureError(
                f"{name} is not capturable: pass capturable=True, or let adapt_optimizers=True do so"
            )
