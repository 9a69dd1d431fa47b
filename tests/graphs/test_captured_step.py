"""Captured steps on the CPU, where a capture and a replay run the step: the bits and counts of a plain loop."""

import copy
import math
import signal
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import hotrows
from hotrows.dense import dense_optimizer, optimizer_override
from hotrows.graphs.training_step import WARM_UP
from tests.graphs.fake_cuda import FakeGraph, FakeStream

SIZES = {"a": 300, "b": 7}
DIM = 4
NUM_STEPS = 11
LOOP = {"depth": 1, "window": 5}

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/graphs/test_training_step.py uses the GPU")


def make_batches(num=NUM_STEPS, size=8):
    random = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(num):
        ids = torch.stack([(torch.rand(size, generator=random) ** 3 * n).long() for n in SIZES.values()], 1)
        dense, label = torch.randn(size, 3, generator=random), torch.rand(size, generator=random).round()
        batches.append(hotrows.Batch(dense, ids, label))
    return batches


class Training:
    """A model with its optimizers and its step.

    Args:
        cuda: the fake to capture with, None for a plain loop.
    """

    def __init__(self, cuda, *, dense="sgd", rows="adam", dims=None, lr=0.05, **arguments) -> None:
        torch.manual_seed(0)
        dims = dims or dict.fromkeys(SIZES, DIM)
        tables = [hotrows.Table(name, num, dim=dims[name]) for name, num in SIZES.items()]
        optimizer = {"adam": hotrows.optim.Adam, "sgd": hotrows.optim.SGD}[rows](lr=0.1)
        self.bags = hotrows.EmbeddingBagCollection(
            tables, optimizer=optimizer, cache=75 if len(set(dims.values())) == 1 else 300
        )
        for scheduler in self.bags.schedulers:
            scheduler.uses_graph = cuda is not None
            scheduler.coalesce = 1
        self.layer = nn.Linear(sum(dims.values()) + 3, 1)
        kinds = {
            "sgd": torch.optim.SGD,
            "momentum": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
            "adam": torch.optim.Adam,
            "adagrad": torch.optim.Adagrad,
        }
        self.dense = kinds[dense](self.layer.parameters(), lr=lr)
        self.graphed = None if cuda is None else cuda.graphed(self.train, self.bags, self.state, **arguments)
        self.step = self.graphed or self.train

    def state(self):
        parts = [value for state in self.dense.state.values() for value in state.values() if torch.is_tensor(value)]
        return [*self.layer.parameters(), *parts]

    def train(self, batch):
        embedded = self.bags(batch.ids)
        parts = embedded if isinstance(embedded, tuple) else [embedded.flatten(1)]
        logits = self.layer(torch.cat([batch.dense, *parts], 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.label)
        self.dense.zero_grad()
        loss.backward()
        self.dense.step()
        return loss.detach()

    def run(self, batches, after=lambda number: None, **loop):
        losses = []
        for number, batch in enumerate(hotrows.lookahead(batches, self.bags, **{**LOOP, **loop})):
            losses.append(self.step(batch))
            after(number)
        return torch.stack(losses)

    def weights(self):
        return {name: self.bags.weight(name) for name in SIZES}


def assert_same(ours, theirs) -> None:
    for name, weight in theirs.weights().items():
        assert torch.equal(ours.weights()[name], weight), name
    for one, other in zip(ours.layer.parameters(), theirs.layer.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("rows", ["adam", "sgd"])
@pytest.mark.parametrize("coalesce", [1, 2])
def test_same_bits_as_a_plain_loop(cuda, rows, coalesce):
    ours, theirs, num_steps = Training(cuda, rows=rows), Training(None, rows=rows), 17
    scheduler = ours.bags.schedulers[0]
    scheduler.coalesce = coalesce
    assert torch.equal(ours.run(make_batches(num_steps), window=8), theirs.run(make_batches(num_steps), window=8))
    assert_same(ours, theirs)
    assert ours.graphed.reason is None
    assert (ours.graphed.num_eager, ours.graphed.num_replayed) == (WARM_UP, num_steps - WARM_UP)
    assert cuda.num_captured == scheduler.planning_graph.num_plan_buffers < ours.graphed.num_replayed
    assert ours.bags.stats().evictions > 0
    assert scheduler.updater.steps == num_steps


def test_tables_of_several_dims_share_a_graph(cuda):
    dims = {"a": 4, "b": 8}
    ours, theirs = Training(cuda, dims=dims), Training(None, dims=dims)
    assert torch.equal(ours.run(make_batches()), theirs.run(make_batches()))
    assert_same(ours, theirs)
    assert ours.graphed.num_replayed == NUM_STEPS - WARM_UP


def test_another_stream_waits_for_the_last_replay(cuda, monkeypatch):
    ours, waits = Training(cuda), []
    monkeypatch.setattr("tests.graphs.fake_cuda.FakeEvent.wait", lambda event, stream: waits.append(stream))
    monkeypatch.setattr("tests.graphs.fake_cuda.FakeEvent.query", lambda event: False)
    other = FakeStream()

    def after(number):
        if number == NUM_STEPS - 2:
            waits.clear()
            cuda.caller = other

    ours.run(make_batches(), after)
    assert waits.count(other) == 2, "for the last replay and for the inputs"


@dataclass
class Result:
    loss: torch.Tensor
    parts: dict[str, list[object]]


def test_outputs_are_new_tensors_in_the_form_of_the_step(cuda):
    training = Training(cuda)

    def step(batch):
        loss = training.train(batch)
        return Result(loss, {"more": [batch.dense.sum(1), None, torch.zeros(0)]})

    one = cuda.graphed(step, training.bags, training.state)
    batches = make_batches()
    results = [one(batch) for batch in hotrows.lookahead(batches, training.bags, **LOOP)]
    assert one.num_replayed > 0
    theirs = Training(None)
    assert torch.equal(torch.stack([result.loss for result in results]), theirs.run(batches))
    for result, batch in zip(results, batches, strict=True):
        assert isinstance(result, Result)
        sums, nothing, empty = result.parts["more"]
        assert torch.equal(sums, batch.dense.sum(1))
        assert nothing is None
        assert empty.numel() == 0
    assert len({result.loss.data_ptr() for result in results}) == NUM_STEPS


def test_batches_without_a_plan_buffer_run_eagerly(cuda):
    """A shorter batch at the end, and one that is trained on a second time outside of its iteration."""
    batches = [*make_batches(), *make_batches(1, size=3)]
    ours, theirs = Training(cuda), Training(None)
    results = []
    for training in (ours, theirs):
        before, losses = None, []
        for batch in hotrows.lookahead(batches, training.bags, **LOOP):
            losses.append(training.step(batch))
            if before is not None:
                losses.append(training.step(before))
            before = batch
        results.append(torch.stack(losses))
    assert torch.equal(*results)
    assert_same(ours, theirs)
    assert ours.graphed.num_replayed == NUM_STEPS - WARM_UP
    assert ours.graphed.num_eager == WARM_UP + 1 + NUM_STEPS


@pytest.mark.parametrize("dense", ["momentum", "adam"])
def test_learning_rates_change(cuda, dense):
    """By a scheduler, which fills a tensor, and by hand, which assigns a number."""
    ours, theirs = Training(cuda, dense=dense), Training(None, dense=dense)
    results = []
    for training in (ours, theirs):
        schedules = [
            torch.optim.lr_scheduler.LambdaLR(each, lambda step: 0.5 ** (step // 3))
            for each in (training.dense, training.bags.optimizer)
        ]

        def after(number, training=training, schedules=schedules):
            if number < 6:
                for schedule in schedules:
                    schedule.step()
            else:
                training.dense.param_groups[0]["lr"] = 0.01 * (NUM_STEPS - number)

        results.append(training.run(make_batches(), after))
    torch.testing.assert_close(*results)
    constant = Training(cuda, dense=dense).run(make_batches())
    assert not torch.allclose(constant, results[0])
    assert ours.graphed.num_replayed == NUM_STEPS - WARM_UP


@pytest.mark.parametrize("change", ["momentum", "loaded", "group"])
def test_a_changed_optimizer_is_captured_again(cuda, change):
    ours, theirs = Training(cuda, dense="momentum"), Training(None, dense="momentum")
    results = []
    for training in (ours, theirs):

        def after(number, training=training):
            optimizer = training.dense
            if number == 6 and change == "momentum":
                optimizer.param_groups[0]["momentum"] = 0.5
            elif number == 6 and change == "loaded":
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            elif number == 6:
                optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})

        results.append(training.run(make_batches(), after))
    torch.testing.assert_close(*results)
    assert ours.graphed.reason is None
    assert ours.graphed.num_eager == WARM_UP + 1
    assert all(group["fused"] and torch.is_tensor(group["lr"]) for group in ours.dense.param_groups)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"dense": "adagrad"}, "Adagrad cannot be captured"),
        ({"adapt_optimizers": False}, "not a tensor on the device"),
        ({"adapt_optimizers": False, "dense": "adam", "lr": torch.tensor(0.05)}, "not capturable"),
    ],
)
def test_an_optimizer_that_cannot_be_captured_is_left_alone(cuda, arguments, reason, caplog):
    plain = {key: value for key, value in arguments.items() if key != "adapt_optimizers"}
    ours, theirs = Training(cuda, **arguments), Training(None, **plain)
    before = dict(ours.dense.param_groups[0])
    assert torch.equal(ours.run(make_batches()), theirs.run(make_batches()))
    assert reason in ours.graphed.reason
    assert reason in caplog.text
    assert ours.graphed.num_eager == NUM_STEPS
    assert cuda.num_captured == 0
    assert all(ours.dense.param_groups[0][name] is value for name, value in before.items())


def test_a_capturable_optimizer_need_not_be_adapted(cuda):
    ours = Training(cuda, lr=torch.tensor(0.05), adapt_optimizers=False)
    theirs = Training(None, lr=torch.tensor(0.05))
    before = dict(ours.dense.param_groups[0])
    assert torch.equal(ours.run(make_batches()), theirs.run(make_batches()))
    assert ours.graphed.num_replayed == NUM_STEPS - WARM_UP
    assert all(ours.dense.param_groups[0][name] is value for name, value in before.items())
    ours.dense.param_groups[0]["lr"] = 0.01
    ours.run(make_batches())
    assert "not a tensor on the device" in ours.graphed.reason


@pytest.mark.parametrize("dense", ["momentum", "adam"])
def test_a_closed_step_leaves_no_trace_and_runs_eagerly(cuda, dense):
    ours, theirs = Training(cuda, dense=dense), Training(None, dense=dense)
    settings = dict(ours.dense.param_groups[0])
    with ours.graphed as step:
        assert step is ours.graphed
        ours.run(make_batches())
        assert ours.dense.param_groups[0]["fused"]
    theirs.run(make_batches())
    assert all(ours.dense.param_groups[0][name] is value for name, value in settings.items())
    assert ours.dense.param_groups[0]["lr"] == 0.05
    assert not ours.dense._optimizer_step_pre_hooks
    assert not ours.dense._optimizer_step_post_hooks
    assert all(param.grad is None for param in ours.layer.parameters())
    assert step.reason == "the GraphedStep was closed"
    step.close()
    torch.testing.assert_close(ours.run(make_batches()), theirs.run(make_batches()))
    assert step.num_eager == WARM_UP + NUM_STEPS
    assert step.num_replayed == NUM_STEPS - WARM_UP
    for one, other in zip(ours.dense.state.values(), theirs.dense.state.values(), strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            torch.testing.assert_close(value, other[name])


def test_a_step_that_fails_in_its_capture_runs_eagerly(cuda):
    training = Training(cuda)
    calls = []

    def step(batch):
        calls.append(batch)
        if len(calls) == WARM_UP + 1:
            raise OSError("disk full")
        return training.train(batch)

    one = cuda.graphed(step, training.bags, training.state)
    losses = [one(batch) for batch in hotrows.lookahead(make_batches(), training.bags, **LOOP)]
    assert one.reason == "capturing the step failed: OSError: disk full"
    assert one.num_eager == NUM_STEPS
    assert torch.equal(torch.stack(losses), Training(None).run(make_batches()))


@pytest.mark.parametrize("kind", ["never", "twice"])
def test_one_backward_pass_must_reach_the_bags(cuda, kind):
    training = Training(cuda)

    def step(batch):
        embedded = training.bags(batch.ids)
        loss = ((embedded.detach() if kind == "never" else embedded) * training.layer.weight.sum()).sum()
        loss.backward(retain_graph=True)
        if kind == "twice":
            loss.backward()
        return loss

    one = cuda.graphed(step, training.bags, training.state)
    for batch in hotrows.lookahead(make_batches(), training.bags, **LOOP):
        one(batch)
    assert "one backward pass" in one.reason


@pytest.mark.parametrize(
    ("use", "reason"), [(lambda ids: ids + 1, "other ids"), (lambda ids: ids * int(ids.sum() * 0 + 1), "meta")]
)
def test_ids_may_go_to_the_bags_only(cuda, use, reason):
    training = Training(cuda)

    def step(batch):
        loss = training.bags(use(batch.ids) % 7).sum()
        loss.backward()
        return loss.detach()

    one = cuda.graphed(step, training.bags)
    for batch in hotrows.lookahead(make_batches(), training.bags, **LOOP):
        one(batch)
    assert reason in one.reason


def test_a_scheduler_in_the_step_is_noticed(cuda):
    training = Training(cuda)
    schedule = torch.optim.lr_scheduler.LambdaLR(training.dense, lambda step: 0.9**step)

    def step(batch):
        loss = training.train(batch)
        schedule.step()
        return loss

    one = cuda.graphed(step, training.bags, training.state)
    for batch in hotrows.lookahead(make_batches(), training.bags, **LOOP):
        one(batch)
    assert "scheduler" in one.reason


def test_a_bad_batch_is_not_replayed_and_does_not_count(cuda):
    batches = make_batches()
    batches[8].ids[3, 1] = 99
    training = Training(cuda)
    loop = hotrows.lookahead(batches, training.bags, **LOOP)
    for _ in range(8):
        training.step(next(loop))
    with pytest.raises(hotrows.BadIdError, match=r"feature 'b', sample 3: id 99"):
        next(loop)
    assert training.graphed.num_replayed == 8 - WARM_UP
    assert training.bags.schedulers[0].updater.steps == 8


def test_a_replay_does_not_count_a_bad_batch_before_it(cuda, monkeypatch):
    """On CUDA the host learns of a bad id after its eager step was counted, and the next replay must not count it."""
    bad = torch.tensor([[1, 99]])
    results = []
    for is_bad in (False, True):
        training = Training(cuda)
        scheduler = training.bags.schedulers[0]

        def after(number, training=training, scheduler=scheduler, is_bad=is_bad):
            if is_bad and number == 7:
                with monkeypatch.context() as patch:
                    patch.setattr(training.bags._forward_pass, "_device", torch.device("cuda"))
                    patch.setattr("hotrows.nn.forward.use_device", lambda device: nullcontext())
                    embedded = training.bags(bad)
                embedded.sum().backward()
                assert scheduler.updater.steps == 9
                assert scheduler.bad_ids._unchecked
                scheduler.bad_ids._unchecked.clear()  # this is not about when the error is raised

        results.append((training.run(make_batches(), after), training.weights(), scheduler.updater.steps))
        assert training.graphed.num_replayed == NUM_STEPS - WARM_UP
    (losses, weights, steps), (bad_losses, bad_weights, bad_steps) = results
    assert steps == bad_steps == NUM_STEPS
    assert torch.equal(losses, bad_losses)
    assert all(torch.equal(weights[name], bad_weights[name]) for name in SIZES)


def test_an_interrupt_during_a_replay_comes_after_it(cuda, monkeypatch):
    """A step that is counted is trained. Planning is replayed too: the interrupt may come before the next step."""
    ours, theirs, replay = Training(cuda), Training(None), FakeGraph.replay

    def interrupted(graph):
        signal.raise_signal(signal.SIGINT)
        replay(graph)

    def after(number):
        if number == 5:
            monkeypatch.setattr(FakeGraph, "replay", interrupted)

    with pytest.raises(KeyboardInterrupt):
        ours.run(make_batches(), after)
    num_steps = ours.bags.schedulers[0].updater.steps
    assert num_steps in (6, 7)
    theirs.run(make_batches()[:num_steps])
    assert_same(ours, theirs)


def test_the_steps_of_dense_optimizers_are_overridden(cuda, monkeypatch):
    """From the first step on, in eager steps and captures alike, and not after the step is closed."""
    taken = []
    monkeypatch.setattr(optimizer_override, "has_kernel", lambda *_: True)
    step = dense_optimizer.sgd
    monkeypatch.setattr(dense_optimizer, "sgd", lambda *all, **more: (taken.append("sgd"), step(*all, **more)))
    training = Training(cuda, lr=torch.tensor(0.05))
    training.dense.param_groups[0]["fused"] = True
    with training.graphed:
        training.run(make_batches())
    assert len(taken) == NUM_STEPS + cuda.num_captured
    training.run(make_batches(3))
    assert len(taken) == NUM_STEPS + cuda.num_captured
    assert math.isclose(training.dense.param_groups[0]["lr"], 0.05, rel_tol=1e-6)
    plain = Training(cuda, lr=torch.tensor(0.05), dense_kernels=False)
    plain.dense.param_groups[0]["fused"] = True
    taken.clear()
    plain.run(make_batches())
    assert not taken


def test_a_new_planning_graph_is_captured_again(cuda):
    ours, theirs = Training(cuda), Training(None)
    for loop in ({}, {"depth": 2, "window": 7}):
        assert torch.equal(ours.run(make_batches(), **loop), theirs.run(make_batches(), **loop))
    assert_same(ours, theirs)
    num_plan_buffers = ours.bags.schedulers[0].planning_graph.num_plan_buffers
    assert cuda.num_captured == num_plan_buffers - 1 + num_plan_buffers
    assert ours.graphed.num_eager == WARM_UP
