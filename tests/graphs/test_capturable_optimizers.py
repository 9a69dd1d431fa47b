"""Whether an optimizer still is as it was recorded."""

import copy

import pytest
import torch

from hotrows.graphs.capturable_optimizers import DenseOptimizers


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    made = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1, momentum=0.9)
    step(made)
    return made


@pytest.fixture
def noted(optimizer: torch.optim.Optimizer) -> DenseOptimizers:
    found = DenseOptimizers()
    found._all = {id(optimizer): optimizer}  # `found` would make it one for CUDA
    found.note()
    return found


def step(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)
    optimizer.step()


def test_steps_and_rates_change_nothing(optimizer, noted):
    rate = optimizer.param_groups[0]["lr"]
    step(optimizer)
    optimizer.param_groups[0]["lr"] = 0.25
    assert noted.are_as_noted()
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25


def test_a_scheduler_fills_the_noted_rate(optimizer, noted):
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)
    step(optimizer)
    versions = noted.rate_versions()
    schedule.step()
    assert noted.are_as_noted()
    assert noted.rate_versions() != versions
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.05)


def test_an_equal_number_changes_nothing(optimizer, noted):
    group = optimizer.param_groups[0]
    group["momentum"] = float(str(group["momentum"]))
    group["initial_lr"] = 0.1  # a scheduler's
    assert noted.are_as_noted()


@pytest.mark.parametrize(
    "change",
    [
        "state", "momentum", "group", "memory", "fresh state", "another parameter", "one parameter less", "frozen",
        "number missing", "state missing", "part renamed", "momentum a tensor",
    ],
)  # fmt: skip
def test_what_a_recording_does_not_survive(optimizer, noted, change):
    param = optimizer.param_groups[0]["params"][0]
    if change == "state":
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    elif change == "momentum":
        optimizer.param_groups[0]["momentum"] = 0.5
    elif change == "group":
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    elif change == "another parameter":
        optimizer.param_groups[0]["params"][0] = torch.nn.Parameter(torch.ones(3))
    elif change == "one parameter less":
        optimizer.param_groups[0]["params"].pop()
    elif change == "frozen":
        param.requires_grad_(False)
    elif change == "number missing":
        del optimizer.param_groups[0]["momentum"]
    elif change == "momentum a tensor":
        optimizer.param_groups[0]["momentum"] = torch.tensor(0.9)
    elif change == "state missing":
        del optimizer.state[param]
    elif change == "part renamed":
        state = optimizer.state[param]
        state["buffer"] = state.pop("momentum_buffer")
    elif change == "memory":
        param.data = torch.ones(3)
    else:
        optimizer.state[param]["momentum_buffer"] = torch.zeros(3)
    assert not noted.are_as_noted()
    noted.note()
    assert noted.are_as_noted()
