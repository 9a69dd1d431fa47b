"""Row optimizers are optimizers to the rest of PyTorch."""

import copy

import pytest
import torch

import hotrows
from hotrows.optim import SGD, Adagrad, Adam, RowWiseAdagrad, make_optimizer


def step(bag: hotrows.EmbeddingBag) -> None:
    bag(torch.tensor([[1], [2]])).square().sum().backward()


def test_a_scheduler_drives_the_learning_rate() -> None:
    optimizer = SGD(lr=1.0)
    bag = hotrows.EmbeddingBag(5, 4, mode="sum", optimizer=optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    for expected in (1.0, 0.5, 0.25):
        before = bag.weight()
        bag(torch.tensor([[3]])).sum().backward()
        optimizer.step()  # a habit, and harmless
        optimizer.zero_grad()
        schedule.step()  # warns if it does not know of a step before
        torch.testing.assert_close(before[3] - bag.weight()[3], torch.full((4,), expected))


@pytest.mark.parametrize("kind", [SGD, Adagrad, RowWiseAdagrad, Adam])
def test_training_goes_on_from_a_checkpoint(kind: type[hotrows.optim.RowOptimizer]) -> None:
    def make(seed: int) -> hotrows.EmbeddingBag:
        return hotrows.EmbeddingBag(5, 4, mode="sum", cache=2, optimizer=kind(lr=0.1), seed=seed)

    first, second = make(0), make(1)
    step(first)
    step(first)
    assert first.optimizer is not None
    assert second.optimizer is not None
    saved = copy.deepcopy({"rows": first.state_dict(), "state": first.optimizer.state_dict()})
    step(second)
    second.load_state_dict(saved["rows"])
    second.optimizer.load_state_dict(saved["state"])
    step(first)
    step(second)
    assert torch.equal(first.weight(), second.weight())


def test_state_of_other_tables_is_refused() -> None:
    bag = hotrows.EmbeddingBag(5, 4, optimizer=Adam())
    bags = hotrows.EmbeddingBagCollection([hotrows.Table("a", 5)], dim=4, optimizer=Adam())
    assert bag.optimizer is not None
    assert bags.optimizer is not None
    with pytest.raises(ValueError, match=r"the state is of tables 0.a, this optimizer's are 0.weight"):
        bag.optimizer.load_state_dict(bags.optimizer.state_dict())


def test_numbers_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="SGD: lr is -1, it must be 0 or more"):
        SGD(lr=-1)
    with pytest.raises(ValueError, match="betas"):
        Adam(betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="optimizer is 'lamb': known are adagrad, adam, row-wise-adagrad, sgd"):
        make_optimizer("lamb")
    assert make_optimizer("adam", lr=0.5).param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([{"lr": "x"}], "Adam: lr is 'x', it must be 0 or more, and finite"),
        ([{"lr": float("nan")}], "Adam: lr is nan"),
        ([{"lr": None}], "Adam: lr is None"),
        ([{"lr": torch.tensor([0.5, 1.0])}], "Adam: lr is tensor"),
        ([{"eps": True}], "Adam: eps is True"),
        ([{"betas": (0.9,)}], r"Adam: betas are \(0.9,\), give two numbers, each at least 0 and less than 1"),
        ([{"betas": (0.9, "x")}], "Adam: betas are"),
        ([1], "the state has a parameter group 1, it must be a dict of hyperparameters"),
        ([], "the state has 0 parameter groups, this optimizer has 1"),
    ],
)
def test_a_state_with_numbers_that_cannot_be_changes_nothing(groups: list[object], message: str) -> None:
    optimizer = Adam()
    bag = hotrows.EmbeddingBag(5, 4, optimizer=optimizer)
    step(bag)
    before = copy.deepcopy(optimizer.state_dict())
    fresh = hotrows.EmbeddingBag(5, 4, optimizer=Adam())
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict({"state": {"0.weight": fresh.row_state("weight")}, "param_groups": groups})
    assert repr(optimizer.state_dict()) == repr(before)


def test_a_state_keeps_the_numbers_of_schedulers() -> None:
    optimizer = SGD(lr=1.0)
    optimizer.load_state_dict({"state": {}, "param_groups": [{"lr": 0.5, "initial_lr": 2.0, "params": [0]}]})
    (group,) = optimizer.param_groups
    assert (group["lr"], group["initial_lr"]) == (0.5, 2.0)
    assert isinstance(group["params"][0], torch.nn.Parameter)


def test_copies_keep_their_state_layout() -> None:
    twin = copy.deepcopy(Adagrad(initial_accumulator_value=0.5))
    assert twin.fields[0].initial_value == 0.5
