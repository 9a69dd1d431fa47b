"""Steps of fused optimizers are computed by our kernel if it can compute them, and by PyTorch otherwise."""

import copy
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hotrows.dense import dense_optimizer
from hotrows.dense import optimizer_override as module
from hotrows.dense.optimizer_override import OptimizerOverride
from hotrows.runtime import cuda_private
from hotrows.train.optimizers import DENSE
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
    """The steps that our functions took, which here take them on a CPU as well."""
    names: list[str] = []

    def noting(name):
        step = getattr(dense_optimizer, name)

        def note_and_step(*tensors, **numbers):
            names.append(name)
            step(*tensors, **numbers)

        return note_and_step

    monkeypatch.setattr(cuda_private, "SAFE", False)
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
            with OptimizerOverride(optimizer):
                step(optimizer, number)
            schedule.step()
    assert len(taken) == 2 * 4, "one for each group and step of ours, none of theirs"
    check(ours, theirs)


@pytest.mark.parametrize("case", CASES)
def test_steps_of_pytorch_may_come_before_and_after(case, taken):
    ours, theirs = make(case), make(case, fused=False, foreach=False)
    for optimizer in (ours, theirs):
        step(optimizer, 0)
        override = OptimizerOverride(optimizer)
        with override:
            step(optimizer, 1)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        with override:
            step(optimizer, 2)
        step(optimizer, 3)
    assert len(taken) == 2 * 2
    check(ours, theirs)


def test_only_steps_inside_are_ours(taken):
    optimizer, other = make("sgd"), make("sgd")
    override = OptimizerOverride(optimizer)
    run = override(step)
    run(optimizer, 0)
    run(other, 0)
    assert len(taken) == 2
    step(optimizer, 1)
    assert len(taken) == 2
    run(optimizer, 2)
    assert len(taken) == 4
    with override, override:
        step(optimizer, 3)
    assert len(taken) == 6
    override.add(other)
    override.add(optimizer)
    run(other, 1)
    run(optimizer, 4)
    assert len(taken) == 10


def test_closed_it_leaves_no_hook(taken):
    optimizer = make("sgd")
    before = dict(torch_optimizer._global_optimizer_pre_hooks), dict(torch_optimizer._global_optimizer_post_hooks)
    override = OptimizerOverride(optimizer)
    run = override(step)
    run(optimizer, 0)
    override.close()
    run(optimizer, 1)
    assert len(taken) == 2
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert before == (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)


def test_an_optimizer_may_be_added_by_a_hook_that_runs_before_its_step(taken):
    """As `hotrows.graphed` adds it, which does not know the optimizers before."""
    optimizer, override = make("sgd"), OptimizerOverride()
    handle = torch_optimizer.register_optimizer_step_pre_hook(lambda optimizer, *_: override.add(optimizer))
    with override:
        step(optimizer, 0)
    handle.remove()
    assert len(taken) == 2
    with override:
        step(optimizer, 1)
    assert len(taken) == 4


def test_without_private_calls_steps_are_pytorchs(taken, monkeypatch):
    monkeypatch.setattr(cuda_private, "SAFE", True)
    ours, theirs = make("adam"), make("adam")
    with OptimizerOverride(ours):
        step(ours, 0)
    step(theirs, 0)
    assert not taken
    assert all(map(torch.equal, params_of(ours), params_of(theirs)))


def test_hooks_run(taken):
    optimizer, seen = make("adam"), []
    optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    with OptimizerOverride(optimizer):
        step(optimizer, 0)
    assert seen == ["pre", "post"]


def test_a_step_that_raises_leaves_nothing_behind(taken):
    optimizer = make("sgd")

    def fail(*_):
        raise ZeroDivisionError

    handle = optimizer.register_step_post_hook(fail)
    with pytest.raises(ZeroDivisionError), OptimizerOverride(optimizer):
        step(optimizer, 0)
    assert _get_current_dispatch_mode() is None
    handle.remove()
    assert len(taken) == 2
    step(optimizer, 0)
    assert len(taken) == 2


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(lambda: make("adam", amsgrad=True), id="amsgrad"),
        pytest.param(lambda: make("adam", fused=False), id="not fused"),
        pytest.param(lambda: torch.optim.Adagrad([nn.Parameter(torch.ones(3))], fused=True), id="another"),
    ],
)
def test_what_is_left_to_pytorch(optimizer, taken):
    ours, theirs = optimizer(), optimizer()
    for number in range(2):
        with OptimizerOverride(ours):
            step(ours, number)
        step(theirs, number)
    assert not taken
    for own, other in zip(params_of(ours), params_of(theirs), strict=True):
        assert torch.equal(own, other)


def test_gradients_with_a_scale_are_left_to_pytorch(taken):
    optimizer = make("sgd")
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    with OptimizerOverride(optimizer):
        step(optimizer, 0)
    assert not taken


def test_nothing_is_taken_on_a_cpu():
    ours, theirs = make("adam"), make("adam")
    with OptimizerOverride(ours):
        step(ours, 0)
    step(theirs, 0)
    for own, other in zip(params_of(ours), params_of(theirs), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("graphs", [True, False])
def test_steps_of_the_trainer_are_ours(graphs, taken, tmp_path, monkeypatch):
    def adam(params, lr):
        return torch.optim.Adam(params, lr=torch.tensor(lr), fused=True)

    monkeypatch.setitem(DENSE, "adam", adam)
    finished = train(tmp_path, train={"batch_size": 256, "graphs": graphs, "max_steps": 3})
    assert taken == ["adam"] * 3 == ["adam"] * finished.summary["steps"]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_captured_step_has_the_bits_of_an_eager_one(case):
    results = []
    for is_captured in (True, False):
        kind, numbers = CASES[case]
        random = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.randn(shape, generator=random).cuda()) for shape in SHAPES]
        capturable = {"capturable": True} if kind is not torch.optim.SGD else {}
        optimizer = kind(params, lr=torch.tensor(0.1, device="cuda"), fused=True, **numbers, **capturable)
        for param in params:
            param.grad = torch.randn(param.shape, generator=random).cuda()
        run = OptimizerOverride(optimizer)(optimizer.step)
        run()
        run()
        if is_captured:
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
    with OptimizerOverride(optimizer):
        optimizer.step()
    assert names == ["ours"]


def test_steps_of_other_threads_are_their_own():
    """Another thread takes a fused step while this one enters and leaves."""
    inside, go_on, modes = threading.Event(), threading.Event(), []
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = torch.optim.SGD([param], lr=0.1, fused=True)
    override = OptimizerOverride(optimizer)

    def other():
        def closure():
            inside.set()
            go_on.wait(10)
            return torch.zeros(())

        optimizer.step(closure)
        modes.append(_get_current_dispatch_mode())

    thread = threading.Thread(target=other)
    with override:
        thread.start()
        assert inside.wait(10)
    go_on.set()
    thread.join()
    assert modes == [None]
    assert _get_current_dispatch_mode() is None


def test_subclasses_of_tensor_are_left_to_pytorch():
    class OnDevice(torch.Tensor):
        is_cuda = True

    rate, tensors = torch.zeros(()).as_subclass(OnDevice), [torch.zeros(3).as_subclass(OnDevice)]
    assert not dense_optimizer.has_kernel(rate, [], tensors, tensors)
    assert not dense_optimizer.has_kernel(torch.zeros(()), [], [])


def test_hotrows_does_not_need_its_dense_kernels():
    """They are optional: `hotrows.graphed` imports them when it is called, and nothing else in the core does."""
    code = "import sys, hotrows; print([name for name in sys.modules if name.startswith('hotrows.dense')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
