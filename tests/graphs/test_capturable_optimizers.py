"""Adapting an optimizer to captures, undoing that, and noticing changes that a captured step does not survive."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

import hotrows
from hotrows.graphs.capturable_optimizers import (
    AdaptedOptimizer,
    CannotCaptureError,
    DenseOptimizers,
    check_capturable,
    make_capturable,
    observe_optimizers,
)

KINDS = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    "fused": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    "adam": (torch.optim.Adam, {}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.01}),
    "fused adam": (torch.optim.Adam, {"fused": True}),
    "adamw": (torch.optim.AdamW, {"foreach": False}),
}


def make(kind="momentum", device="cpu", **arguments) -> torch.optim.Optimizer:
    """An optimizer of two groups."""
    cls, more = KINDS[kind]
    random = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(size, generator=random).to(device)) for size in (3, 5, 2)]
    return cls([{"params": params[:2]}, {"params": params[2:], "lr": 0.07}], **{"lr": 0.1, **more, **arguments})


def step(optimizer: torch.optim.Optimizer, num: int = 1) -> None:
    for number in range(num):
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = torch.ones_like(param) * (number + 1)
        optimizer.step()


def params_of(optimizer):
    return [param for group in optimizer.param_groups for param in group["params"]]


def assert_same(ours, theirs) -> None:
    for one, other in zip(params_of(ours), params_of(theirs), strict=True):
        assert torch.equal(one, other)
        assert ours.state[one].keys() == theirs.state[other].keys()
        for name, value in ours.state[one].items():
            expected = theirs.state[other][name]
            assert value.dtype == expected.dtype
            assert value.device == expected.device
            assert torch.equal(value, expected), name


# -- adapting and restoring -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_after_restoring_as_if_nothing_had_been(kind, device):
    ours, theirs = make(kind, device), make(kind, device)
    for optimizer in (ours, theirs):
        step(optimizer, 2)
    before = [{**group, "params": None} for group in ours.param_groups]
    adapted = AdaptedOptimizer(ours)
    adapted.adapt()
    for group in ours.param_groups:
        assert group["fused"]
        assert not group["foreach"]
        assert group.get("capturable", True)
        assert group["lr"].device.type == device
        assert all(ours.state[p]["step"].device.type == device for p in group["params"] if "step" in ours.state[p])
    adapted.restore()
    assert [{**group, "params": None} for group in ours.param_groups] == before
    assert all(type(group["lr"]) is float for group in ours.param_groups)
    for optimizer in (ours, theirs):
        step(optimizer, 2)
    assert_same(ours, theirs)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")
def test_steps_may_be_taken_while_adapted(kind, device):
    """Also the first ones, for which the optimizer makes its state."""
    ours, theirs = make(kind, device), make(kind, device, fused=True, foreach=False)
    adapted = AdaptedOptimizer(ours)
    adapted.adapt()
    for optimizer in (ours, theirs):
        step(optimizer, 3)
    adapted.restore()
    for one, other in zip(params_of(ours), params_of(theirs), strict=True):
        torch.testing.assert_close(one, other)
    step(ours, 2)
    plain = make(kind, device)
    plain.load_state_dict(copy.deepcopy(ours.state_dict()))
    where = {param: {name: part.device.type for name, part in ours.state[param].items()} for param in params_of(ours)}
    assert all(
        {name: part.device.type for name, part in plain.state[other].items()} == where[one]
        for one, other in zip(params_of(ours), params_of(plain), strict=True)
    )


def test_step_counts_are_where_and_what_pytorch_makes_them():
    torch.set_default_dtype(torch.float64)
    try:
        ours, theirs = make("adam"), make("adam")
        for optimizer in (ours, theirs):
            step(optimizer)
        adapted = AdaptedOptimizer(ours)
        adapted.adapt()
        assert ours.state[params_of(ours)[0]]["step"].dtype == torch.float32
        adapted.restore()
        assert_same(ours, theirs)
    finally:
        torch.set_default_dtype(torch.float32)


def test_learning_rates_keep_their_present_values():
    optimizer = make("adam", lr=torch.tensor(0.3, dtype=torch.float64))
    given = optimizer.param_groups[0]["lr"]
    adapted = AdaptedOptimizer(optimizer)
    adapted.adapt()
    first, second = (group["lr"] for group in optimizer.param_groups)
    assert first is given, "it is a tensor on the device already"
    second.fill_(0.01)  # as a scheduler does
    adapted.restore()
    assert optimizer.param_groups[0]["lr"] is given
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.01)
    assert type(optimizer.param_groups[1]["lr"]) is float


def test_an_assigned_learning_rate_keeps_all_its_digits():
    optimizer = make("adam")
    dense = DenseOptimizers("cpu", adapts=True)
    step(optimizer)
    dense.found({id(optimizer): optimizer})
    dense.note()
    optimizer.param_groups[0]["lr"] = 1 / 3
    assert dense.are_unchanged()
    assert torch.is_tensor(optimizer.param_groups[0]["lr"])
    dense.restore()
    assert [group["lr"] for group in optimizer.param_groups] == [1 / 3, 0.07]


def test_settings_that_the_user_has_changed_stay():
    optimizer = make("momentum")
    adapted = AdaptedOptimizer(optimizer)
    adapted.adapt()
    optimizer.param_groups[0]["fused"] = None
    optimizer.param_groups[1]["lr"] = 0.2
    adapted.restore()
    assert optimizer.param_groups[0]["fused"] is None
    assert [group["foreach"] for group in optimizer.param_groups] == [True, True]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


def test_groups_that_were_loaded_or_added_are_adapted_and_restored():
    optimizer = make("adam")
    step(optimizer)
    dense = DenseOptimizers("cpu", adapts=True)
    dense.found({id(optimizer): optimizer})
    optimizer.load_state_dict(copy.deepcopy(make("adam").state_dict()))
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.5})
    dense.found({id(optimizer): optimizer})
    assert all(group["capturable"] and torch.is_tensor(group["lr"]) for group in optimizer.param_groups)
    dense.restore()
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.07, 0.5]
    assert not any(group["capturable"] or group["fused"] for group in optimizer.param_groups)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda optimizer: torch.optim.RMSprop(params_of(optimizer)), "RMSprop cannot be captured"),
        (lambda optimizer: params_of(optimizer)[2].to("meta"), "not on the device"),
        (lambda optimizer: optimizer.param_groups[1].update(differentiable=True), "differentiable"),
        (
            lambda optimizer: setattr(params_of(optimizer)[2], "grad", torch.zeros(2).to_sparse()),
            "sparse gradients",
        ),
    ],
)
def test_an_optimizer_that_cannot_be_captured_is_not_changed(change, reason):
    optimizer = make("sgd")
    other = change(optimizer)
    if isinstance(other, torch.optim.Optimizer):
        optimizer = other
    elif isinstance(other, torch.Tensor):
        optimizer.param_groups[1]["params"] = [nn.Parameter(other.detach())]
    before = [dict(group) for group in optimizer.param_groups]
    dense = DenseOptimizers("cpu", adapts=True)
    fine = make("adam")
    for found in ({id(optimizer): optimizer}, {id(fine): fine, id(optimizer): optimizer}):
        with pytest.raises(CannotCaptureError, match=reason):
            dense.found(found)
    assert all(group == old for group, old in zip(optimizer.param_groups, before, strict=True))
    assert not any(group["fused"] for group in fine.param_groups)


def test_parameters_must_be_on_the_device():
    with pytest.raises(CannotCaptureError, match="not on the device"):
        make_capturable(make("sgd"))
    check_capturable(make("sgd"), "cpu")


def test_the_same_optimizers_must_take_a_step_in_every_call():
    one, other = make("sgd"), make("sgd")
    dense = DenseOptimizers("cpu", adapts=True)
    dense.found({id(one): one})
    with pytest.raises(CannotCaptureError, match="does not call the same optimizers"):
        dense.found({id(one): one, id(other): other})


# -- observing --------------------------------------------------------------------------------------------------


@pytest.fixture
def debug_mode(monkeypatch) -> dict[str, int]:
    """The mode of CUDA in which waiting for the device is reported."""
    mode = {"mode": 0}
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode["mode"])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda value: mode.update(mode=value))
    return mode


@pytest.mark.parametrize("fails", [False, True])
def test_observing_leaves_nothing_behind(debug_mode, fails):
    hooks = dict(torch_optimizer._global_optimizer_pre_hooks)
    filters = list(warnings.filters)
    optimizer, rows, seen = make("sgd"), hotrows.optim.SGD(lr=0.1), []
    with pytest.raises(ZeroDivisionError) if fails else warnings.catch_warnings():
        with observe_optimizers(seen.append) as (found, waits):
            assert debug_mode["mode"] == 1
            step(optimizer)
            rows.step()
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("This instance was constructed with capturable=True, but", stacklevel=1)
            if fails:
                raise ZeroDivisionError
        assert found == {id(optimizer): optimizer}
        assert [wait.split(":")[0] for wait in waits] == ["test_capturable_optimizers.py"]
    assert seen == [optimizer]
    assert debug_mode["mode"] == 0
    assert warnings.filters == filters
    assert dict(torch_optimizer._global_optimizer_pre_hooks) == hooks


def test_other_warnings_are_passed_on(debug_mode):
    with pytest.warns(UserWarning, match="beware"), observe_optimizers(lambda optimizer: None):
        warnings.warn("beware", stacklevel=1)


# -- noticing changes -------------------------------------------------------------------------------------------


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    made = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1, momentum=0.9)
    step(made)
    return made


@pytest.fixture
def noted(optimizer: torch.optim.Optimizer) -> DenseOptimizers:
    dense = DenseOptimizers("cpu", adapts=True)
    dense.found({id(optimizer): optimizer})
    dense.note()
    return dense


def test_steps_and_learning_rates_change_nothing(optimizer, noted):
    rate = optimizer.param_groups[0]["lr"]
    step(optimizer)
    optimizer.param_groups[0]["lr"] = 0.25
    assert noted.are_unchanged()
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25


def test_a_scheduler_fills_the_noted_rate(optimizer, noted):
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)
    step(optimizer)
    versions = noted.rate_versions()
    schedule.step()
    assert noted.are_unchanged()
    assert noted.rate_versions() != versions
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.05)


def test_an_equal_number_changes_nothing(optimizer, noted):
    group = optimizer.param_groups[0]
    group["momentum"] = float(str(group["momentum"]))
    group["initial_lr"] = 0.1  # a scheduler's
    assert noted.are_unchanged()


@pytest.mark.parametrize(
    "change",
    [
        "state", "momentum", "group", "memory", "fresh state", "another parameter", "one parameter less", "frozen",
        "number missing", "state missing", "part renamed", "momentum a tensor",
    ],
)  # fmt: skip
def test_what_a_captured_step_does_not_survive(optimizer, noted, change):
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
    assert not noted.are_unchanged()
    noted.found({id(optimizer): optimizer})
    noted.note()
    assert noted.are_unchanged()


def test_an_assigned_rate_is_a_change_for_an_optimizer_that_is_not_adapted():
    optimizer = make("sgd", lr=torch.tensor(0.1))
    optimizer.param_groups[1]["lr"] = torch.tensor(0.2)
    dense = DenseOptimizers("cpu", adapts=False)
    dense.found({id(optimizer): optimizer})
    dense.note()
    optimizer.param_groups[1]["lr"].fill_(0.3)
    assert dense.are_unchanged()
    optimizer.param_groups[1]["lr"] = 0.1
    assert not dense.are_unchanged()
    assert optimizer.param_groups[1]["lr"] == 0.1
    with pytest.raises(CannotCaptureError, match="not a tensor"):
        dense.found({id(optimizer): optimizer})
