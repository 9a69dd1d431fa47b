"""Steps of fused optimizers are computed by our kernel, and by PyTorch's where ours does not do."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

import hotrows
from hotrows.dense import dense_optimizer
from hotrows.dense import optimizer_override as module
from hotrows.dense.optimizer_override import optimizer_override
from hotrows.train.trainer import DENSE
from tests.train.test_run import train

SHAPES = [(3, 5), (7,), (40, 30), (1,)]
CASES = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "adam": (torch.optim.Adam, {"weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"betas": (0.8, 0.99)}),
}
CLOSE = {"rtol": 3e-5, "atol": 5e-6}  # torch.optim on a CPU has the betas in double


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that were ours, which they are on a CPU as well."""
    names: list[str] = []

    def noting(name):
        step = getattr(dense_optimizer, name)

        def noted(*tensors, **numbers):
            names.append(name)
            step(*tensors, **numbers)

        return noted

    monkeypatch.setattr(module, "has_kernel", lambda *_: True)
    for name in ("sgd", "adam"):
        monkeypatch.setattr(dense_optimizer, name, noting(name))
    return names


def make(case, **more):
    """An optimizer of two groups."""
    kind, numbers = CASES[case]
    random = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES]
    groups = [{"params": params[:3], "lr": torch.tensor(0.1)}, {"params": params[3:], "lr": torch.tensor(0.05)}]
    return kind(groups, **{"fused": True, **numbers, **more})


def step(optimizer, seed):
    random = torch.Generator().manual_seed(seed)
    for param in params_of(optimizer):
        param.grad = torch.randn(param.shape, generator=random)
    optimizer.step()


def params_of(optimizer):
    return [param for group in optimizer.param_groups for param in group["params"]]


def check(ours, theirs):
    for own, other in zip(params_of(ours), params_of(theirs), strict=True):
        torch.testing.assert_close(own, other, **CLOSE)
        assert ours.state[own].keys() == theirs.state[other].keys()
        for name, part in ours.state[own].items():
            torch.testing.assert_close(part, theirs.state[other][name], **CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_optimizer(case, taken):
    ours, theirs = make(case), make(case, fused=False, foreach=False)
    for optimizer in (ours, theirs):
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)
        for number in range(4):
            with optimizer_override():
                step(optimizer, number)
            schedule.step()
    assert len(taken) == 2 * 4, "one for each group and step of ours, none of theirs"
    check(ours, theirs)


@pytest.mark.parametrize("case", CASES)
def test_steps_of_torch_may_come_before_and_after(case, taken):
    ours, theirs = make(case), make(case, fused=False, foreach=False)
    for optimizer in (ours, theirs):
        step(optimizer, 0)
        with optimizer_override():
            step(optimizer, 1)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        with optimizer_override():
            step(optimizer, 2)
        step(optimizer, 3)
    assert len(taken) == 2 * 2
    check(ours, theirs)


def test_only_steps_inside_are_ours(taken):
    optimizer = make("sgd")
    run = optimizer_override()(step)
    run(optimizer, 0)
    assert len(taken) == 2
    step(optimizer, 1)
    assert len(taken) == 2
    run(optimizer, 2)
    assert len(taken) == 4


def test_hooks_run(taken):
    optimizer, seen = make("adam"), []
    optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    with optimizer_override():
        step(optimizer, 0)
    assert seen == ["pre", "post"]


def test_a_step_that_raises_leaves_nothing_behind(taken):
    optimizer = make("sgd")

    def fail(*_):
        raise ZeroDivisionError

    handle = optimizer.register_step_pre_hook(fail)
    with pytest.raises(ZeroDivisionError), optimizer_override():
        step(optimizer, 0)
    assert _get_current_dispatch_mode() is None
    handle.remove()
    step(optimizer, 0)
    assert not taken


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(lambda: make("adam", amsgrad=True), id="amsgrad"),
        pytest.param(lambda: make("adam", fused=False), id="not fused"),
        pytest.param(lambda: torch.optim.Adagrad([nn.Parameter(torch.ones(3))], fused=True), id="another"),
    ],
)
def test_what_is_left_to_torch(optimizer, taken):
    ours, theirs = optimizer(), optimizer()
    for number in range(2):
        with optimizer_override():
            step(ours, number)
        step(theirs, number)
    assert not taken
    for own, other in zip(params_of(ours), params_of(theirs), strict=True):
        assert torch.equal(own, other)


def test_gradients_with_a_scale_are_left_to_torch(taken):
    optimizer = make("sgd")
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    with optimizer_override():
        step(optimizer, 0)
    assert not taken


def test_nothing_is_taken_on_a_cpu():
    ours, theirs = make("adam"), make("adam")
    with optimizer_override():
        step(ours, 0)
    step(theirs, 0)
    for own, other in zip(params_of(ours), params_of(theirs), strict=True):
        assert torch.equal(own, other)


def test_graphed_steps_are_ours(taken):
    bags = hotrows.EmbeddingBagCollection([hotrows.Table("a", 9)], 4, optimizer=hotrows.optim.SGD(lr=0.1))
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=torch.tensor(0.1), fused=True)

    def train_on(ids):
        optimizer.zero_grad()
        layer(bags(ids)[:, 0]).sum().backward()
        optimizer.step()

    one = hotrows.graphed(train_on, bags)
    for _ in range(3):
        one(torch.tensor([[1], [2]]))
    assert taken == ["sgd"] * 3


@pytest.mark.parametrize("graphs", [True, False])
def test_steps_of_the_trainer_are_ours(graphs, taken, tmp_path, monkeypatch):
    def adam(params, lr):
        return torch.optim.Adam(params, lr=torch.tensor(lr), fused=True)

    monkeypatch.setitem(DENSE, "adam", adam)
    finished = train(tmp_path, train={"batch_size": 256, "graphs": graphs, "max_steps": 3})
    assert taken == ["adam"] * 3 == ["adam"] * finished.summary["steps"]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_recorded_step_has_the_bits_of_one_as_it_stands(case):
    results = []
    for recorded in (True, False):
        kind, numbers = CASES[case]
        random = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.randn(shape, generator=random).cuda()) for shape in SHAPES]
        capturable = {"capturable": True} if kind is not torch.optim.SGD else {}
        optimizer = kind(params, lr=torch.tensor(0.1, device="cuda"), fused=True, **numbers, **capturable)
        for param in params:
            param.grad = torch.randn(param.shape, generator=random).cuda()
        run = optimizer_override()(optimizer.step)
        run()
        run()
        if recorded:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            run = graph.replay
        for number in range(5):
            optimizer.param_groups[0]["lr"].fill_(0.1 / (number + 1))
            run()
        results.append([param.detach().cpu() for param in params])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_steps_on_a_gpu_are_ours(case, monkeypatch):
    names = []
    for name in ("sgd", "adam"):
        monkeypatch.setattr(dense_optimizer, name, lambda *_, **__: names.append("ours"))
    optimizer = make(case)
    kind, numbers = CASES[case]
    params = [nn.Parameter(param.detach().cuda()) for param in params_of(optimizer)]
    optimizer = kind(params, lr=torch.tensor(0.1, device="cuda"), fused=True, **numbers)
    for param in params:
        param.grad = torch.ones_like(param)
    with optimizer_override():
        optimizer.step()
    assert names == ["ours"]


def test_steps_of_other_threads_are_their_own():
    """Another thread takes a fused step, without hotrows, while this one enters and leaves."""
    inside, go_on, modes = threading.Event(), threading.Event(), []

    def other():
        param = torch.nn.Parameter(torch.ones(3))
        param.grad = torch.ones(3)

        def closure():
            inside.set()
            go_on.wait(10)
            return torch.zeros(())

        torch.optim.SGD([param], lr=0.1, fused=True).step(closure)
        modes.append(_get_current_dispatch_mode())

    thread = threading.Thread(target=other)
    with optimizer_override():
        thread.start()
        assert inside.wait(10)
    go_on.set()
    thread.join()
    assert modes == [None]
    assert _get_current_dispatch_mode() is None


def test_tensors_that_know_themselves_how_they_step_are_left_alone():
    class OnDevice(torch.Tensor):
        is_cuda = True

    rate, tensors = torch.zeros(()).as_subclass(OnDevice), [torch.zeros(3).as_subclass(OnDevice)]
    assert not dense_optimizer.has_kernel(rate, [], tensors, tensors)
    assert not dense_optimizer.has_kernel(torch.zeros(()), [], [])
