"""Tells whether an optimizer still is as it was when a step was captured.

A captured step reads and writes the tensors that the optimizer had at the capture, and uses the settings that it had
then. A learning rate may change if it is a tensor on the device. After any other change the step must be captured
again.
"""

from collections.abc import Callable
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor


class OptimizerSnapshot:
    """What an optimizer was at one time.

    That is the identity of its groups, parameters and state tensors, the addresses of its parameters, and the settings
    of its groups.

    Args:
        assign_rate: called with the position of a group and its captured learning rate, if the user has assigned
            another learning rate to the group. It copies the assigned value to the captured tensor and puts that tensor
            back into the group. With None, an assigned learning rate is a change like any other.

    Attributes:
        rates: the learning rate of each group, a tensor.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, assign_rate: Callable[[int, Tensor], None] | None) -> None:
        self._assign_rate = assign_rate
        self._optimizer = optimizer
        self._state: dict[Tensor, dict[str, Any]] = optimizer.state
        self._groups = list(optimizer.param_groups)
        self.rates: list[Tensor] = [group["lr"] for group in self._groups]
        self._settings = [_settings(group) for group in self._groups]
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
        """True if everything that a captured step needs is still there, although something else has changed."""
        optimizer, groups = self._optimizer, self._optimizer.param_groups  # `load_state_dict` makes new groups
        if optimizer.state is not self._state or len(groups) != len(self._groups):
            return False
        for position, (group, noted, rate) in enumerate(zip(groups, self._groups, self.rates, strict=True)):
            if group is not noted:
                return False
            if group["lr"] is not rate:
                if self._assign_rate is None:
                    return False
                self._assign_rate(position, rate)
        for group, settings, params in zip(groups, self._settings, self._params, strict=True):
            for name, setting in settings:
                now = group.get(name)
                if now is not setting and (isinstance(now, Tensor) or now != setting):
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
    """All objects of an optimizer, their names, the addresses of its parameters, and which of them train."""
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


def _settings(group: dict[str, Any]) -> list[tuple[str, Any]]:
    """The settings of a group that are not tensors, by name. "initial_lr" is left out: only a scheduler reads it."""
    kept = group.keys() - {"params", "initial_lr"}
    return [(name, group[name]) for name in kept if not isinstance(group[name], Tensor)]
