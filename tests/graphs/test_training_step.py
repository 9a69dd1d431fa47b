"""Training steps replayed from CUDA graphs: the same bits as the plain loop."""

import copy
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import hotrows
from hotrows.cache.planning import planning_graph
from hotrows.dense.optimizer_override import OptimizerOverride
from hotrows.graphs.training_step import WARM_UP

SIZES = {"a": 3000, "b": 40, "c": 5}
DIM = 16
NUM_STEPS = 25
OPTIMIZERS = {
    "sgd": lambda: hotrows.optim.SGD(lr=0.1),
    "adagrad": lambda: hotrows.optim.Adagrad(lr=0.1),
    "row-wise-adagrad": lambda: hotrows.optim.RowWiseAdagrad(lr=0.1),
    "adam": lambda: hotrows.optim.Adam(lr=0.01),
}

gpu = pytest.mark.gpu


AHEAD, CACHE = {"depth": 2, "window": 6}, {"cache": 400}


@pytest.fixture(autouse=True, params=[1, 4])
def num_coalesced(request, monkeypatch) -> int:
    """How many batches are planned as one. The window must be so long, and the cache so large, that they can be."""
    monkeypatch.setattr(planning_graph, "batches_to_coalesce", lambda *_: request.param)
    if request.param > 1:
        monkeypatch.setitem(AHEAD, "window", 14)
        monkeypatch.setitem(CACHE, "cache", 600)
    return request.param


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3 * DIM + 4, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense, embedded):
        return self.layers(torch.cat([dense, embedded.flatten(1)], 1)).squeeze(1)


def make_batches(num=NUM_STEPS, size=64, last=None, where="cpu"):
    random = torch.Generator().manual_seed(1)
    batches = []
    for number in range(num):
        rows = last if last is not None and number == num - 1 else size
        ids = torch.stack([(torch.rand(rows, generator=random) ** 3 * n).long() for n in SIZES.values()], 1)
        dense, label = torch.randn(rows, 4, generator=random), torch.rand(rows, generator=random).round()
        batches.append(hotrows.Batch(dense.to(where), ids.to(where), label.to(where)))
    return batches


def run(
    batches, *, graphs, device="cuda", optimizer="sgd", dense="sgd", schedule=False, depth=2, window=None, epochs=1,
    within=lambda number: nullcontext(), keep=lambda loss: loss, **arguments,
):  # fmt: skip
    """Train, and return losses, dense weights, tables, and the step.

    Args:
        within: makes the context in which a step is called. keep: is called with each output.
    """
    torch.manual_seed(0)
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, DIM, optimizer=OPTIMIZERS[optimizer](), device=device, **arguments)
    model = Net().to(device)
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad}[dense]
    dense_optimizer = make(model.parameters(), lr=0.05)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda step: 0.8**step)
        for each in ((dense_optimizer, bags.optimizer) if schedule else ())
    ]

    def step(batch):
        dense, label = batch.dense.to(device), batch.label.to(device)
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, bags(batch.ids)), label)
        dense_optimizer.zero_grad()
        loss.backward()
        dense_optimizer.step()
        return loss.detach()

    one = hotrows.graphed(step, bags) if graphs else step
    losses = []

    def epoch():
        for number, batch in enumerate(hotrows.lookahead(batches, bags, depth=depth, window=window or AHEAD["window"])):
            with within(number):
                losses.append(keep(one(batch)))
            for each in schedules:
                each.step()

    epoch()
    for _ in range(epochs - 1):
        in_another_thread(epoch)
    if device == "cuda":
        torch.cuda.synchronize()
    bags.flush()
    weights = [p.detach().cpu() for p in model.parameters()]
    state = {name: bags.row_state(name) for name in SIZES}
    return {
        "losses": torch.stack([loss.cpu() for loss in losses]),
        "weights": weights,
        "tables": {name: bags.weight(name) for name in SIZES},
        "state": {f"{name}.{key}": value.clone() for name in SIZES for key, value in state[name].items()},
        "step": one,
        "stats": copy.copy(bags.stats()),
    }


def in_another_thread(work) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()


def same(ours, theirs) -> None:
    assert torch.equal(ours["losses"], theirs["losses"])
    for a, b in zip(ours["weights"], theirs["weights"], strict=True):
        assert torch.equal(a, b)
    for part in ("tables", "state"):
        for name, value in ours[part].items():
            assert torch.equal(value, theirs[part][name]), name


@gpu
def test_steps_in_several_streams_and_threads():
    """Graphs share memory, so a replay must not begin before the last one has ended, in whatever stream or thread."""
    streams = [torch.cuda.Stream() for _ in range(2)]

    def within(number):  # eager steps are not ordered between streams, as without hotrows
        return nullcontext() if number <= WARM_UP else torch.cuda.stream(streams[number % 2])

    batches = make_batches()
    ours = run(batches, graphs=True, epochs=2, **CACHE, within=within)
    same(ours, run(batches, graphs=True, epochs=2, store="device"))
    assert ours["step"].num_replayed > NUM_STEPS


@gpu
def test_outputs_are_separate_tensors():
    """A user may change one in place while autograd holds another, and add to it a tensor that has a gradient."""
    weight = torch.ones((), device="cuda", requires_grad=True)
    calls, products = [], []

    def keep(loss):
        kept = loss.clone()
        calls.append(loss)
        if len(calls) % 2:
            products.append(weight * loss)  # its backward pass reads the loss
        else:
            loss += weight
        return kept

    batches = make_batches()
    ours = run(batches, graphs=True, **CACHE, keep=keep)
    sum(products).backward()
    same(ours, run(batches, graphs=True, **CACHE))


@gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_same_bits_as_all_rows_on_the_device(optimizer, where):
    batches = make_batches(where=where)
    ours = run(batches, graphs=True, optimizer=optimizer, **CACHE)
    theirs = run(batches, graphs=True, optimizer=optimizer, store="device")
    same(ours, theirs)
    for found in (ours, theirs):
        assert found["step"].reason is None
        assert found["step"].num_replayed == NUM_STEPS - WARM_UP
    assert ours["stats"].evictions > 0
    assert ours["stats"].immediate_plans == 0


@gpu
@pytest.mark.parametrize(
    "arguments",
    [
        {"cache": 400},
        {"store": "device"},
        {"cache": 400, "index": "hash"},
        {"cache": 400, "policy": "lru"},
        {"cache": 400, "policy": "lfu", "index": "hash"},
    ],
)
def test_same_bits_as_a_plain_loop(arguments):
    batches = make_batches()
    same(run(batches, graphs=True, **arguments), run(batches, graphs=False, **arguments))


@gpu
@pytest.mark.parametrize("dense", ["sgd", "adam"])
def test_learning_rates_change(dense):
    batches = make_batches()
    ours = run(batches, graphs=True, dense=dense, optimizer="adam", schedule=True, **CACHE)
    theirs = run(batches, graphs=True, dense=dense, optimizer="adam", schedule=True, store="device")
    same(ours, theirs)
    constant = run(batches, graphs=True, dense=dense, optimizer="adam", **CACHE)
    assert not torch.equal(ours["losses"], constant["losses"])
    plain = run(batches, graphs=False, dense=dense, optimizer="adam", schedule=True, **CACHE)
    torch.testing.assert_close(ours["losses"], plain["losses"])  # fused and single-tensor updates round differently


@gpu
def test_a_cache_too_small_for_the_depth():
    """Plans that do not fit are made later. Batches that do not fit at all overflow, and their steps run eagerly."""
    batches = make_batches(size=200)
    ours = run(batches, graphs=True, cache=150, depth=4)
    same(ours, run(batches, graphs=True, store="device"))
    assert ours["stats"].rejected_plans > 0
    overflowing = run(batches, graphs=True, cache=60, depth=2)
    same(overflowing, run(batches, graphs=True, store="device"))
    assert overflowing["stats"].overflow > 0
    assert overflowing["step"].num_eager > WARM_UP


@gpu
@pytest.mark.parametrize("num", [2, 4])
def test_batches_are_coalesced(num, monkeypatch):
    """As many as possible, while rows are evicted in every iteration."""
    monkeypatch.setattr(planning_graph, "batches_to_coalesce", lambda *_: num)
    replays, run_graph = [], planning_graph.PlanningGraph.run

    def run_and_note(graph, announces, plans, *more):
        replays.append((announces, plans))
        return run_graph(graph, announces, plans, *more)

    monkeypatch.setattr(planning_graph.PlanningGraph, "run", run_and_note)
    batches = make_batches(60)
    ours = run(batches, graphs=True, cache=700, depth=3, window=16, optimizer="adam")
    assert sum(plans for _, plans in replays) == 60 // num
    assert ours["stats"].evictions > 0
    assert ours["stats"].rejected_plans == 0
    assert ours["step"].num_replayed == 60 - WARM_UP
    same(ours, run(batches, graphs=True, store="device", optimizer="adam"))


@gpu
def test_a_last_batch_that_is_shorter():
    batches = make_batches(last=7)
    ours = run(batches, graphs=True, **CACHE)
    same(ours, run(batches, graphs=True, store="device"))
    assert ours["step"].num_replayed == NUM_STEPS - WARM_UP - 1


@gpu
def test_several_epochs_and_reads_between():
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    results = []
    for arguments in (CACHE, {"store": "device"}):
        torch.manual_seed(0)
        bags = hotrows.EmbeddingBagCollection(
            tables, DIM, optimizer=hotrows.optim.Adam(lr=0.01), device="cuda", **arguments
        )

        def step(batch, bags=bags):
            loss = (bags(batch.ids).float() ** 2).sum() * 0.01 + bags.device.index * 0
            loss.backward()
            return loss.detach()

        one = hotrows.graphed(step, bags)
        losses = []
        for _ in range(3):
            bags.train()
            for number, batch in enumerate(hotrows.lookahead(make_batches(), bags, **AHEAD)):
                losses.append(one(batch))
                if number == 11:
                    bags.eval()
                    with torch.no_grad():
                        losses.append(bags(batch.ids.cuda()).sum())
                    bags.train()
                if number == 20:
                    break
        bags.flush()
        results.append((torch.stack([loss.cpu() for loss in losses]), {name: bags.weight(name) for name in SIZES}))
        assert one.num_replayed > 40
    assert torch.equal(results[0][0], results[1][0])
    for name in SIZES:
        assert torch.equal(results[0][1][name], results[1][1][name])


@gpu
@pytest.mark.parametrize("change", ["unfrozen", "state cleared"])
def test_state_that_is_made_late_is_made_once(change):
    """State made in a capture would be initialized again by every replay."""
    results = []
    for graphs in (True, False):
        torch.manual_seed(0)
        bags, model = make_bags(), torch.nn.Sequential(torch.nn.Linear(DIM, 8), torch.nn.Linear(8, 1)).cuda()
        model[0].requires_grad_(change != "unfrozen")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)

        def step(batch, bags=bags, model=model, optimizer=optimizer):
            loss = (model(bags(batch.ids).sum(1)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        one = hotrows.graphed(step, bags) if graphs else OptimizerOverride(optimizer)(step)
        losses = []
        for number, batch in enumerate(hotrows.lookahead(make_batches(), bags, **AHEAD)):
            if number == NUM_STEPS // 2:
                model[0].requires_grad_(True)
                if change == "state cleared":
                    optimizer.state.clear()
            losses.append(one(batch))
        assert not graphs or one.reason is None
        assert not graphs or one.num_eager == WARM_UP + 1
        results.append(torch.stack(losses))
    torch.testing.assert_close(*results)


@gpu
def test_says_why_a_step_is_not_replayed(caplog):
    batches = make_batches()
    with caplog.at_level(logging.WARNING, logger="hotrows"):
        ours = run(batches, graphs=True, dense="adagrad", **CACHE)
    assert "Adagrad cannot be captured" in ours["step"].reason
    assert "Adagrad cannot be captured" in caplog.text
    same(ours, run(batches, graphs=False, dense="adagrad", **CACHE))


@gpu
def test_ids_used_for_something_else_are_noticed():
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, DIM, **CACHE, optimizer=hotrows.optim.SGD(lr=0.1), device="cuda")

    def step(batch):
        loss = (bags(batch.ids).sum((1, 2)) * batch.ids[:, 0].float()).sum()
        loss.backward()
        return loss.detach()

    one = hotrows.graphed(step, bags)
    for batch in hotrows.lookahead(make_batches(where="cuda"), bags, **AHEAD):
        one(batch)
    assert one.reason is not None
    assert "meta" in one.reason


@gpu
def test_a_host_that_reads_values_is_noticed():
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, DIM, **CACHE, optimizer=hotrows.optim.SGD(lr=0.1), device="cuda")

    def step(batch):
        loss = bags(batch.ids).sum()
        loss.backward()
        return loss.item()

    one = hotrows.graphed(step, bags)
    losses = [one(batch) for batch in hotrows.lookahead(make_batches(), bags, **AHEAD)]
    assert one.reason is not None
    assert all(isinstance(loss, float) for loss in losses)
    bags.flush()


def make_bags(**arguments):
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    return hotrows.EmbeddingBagCollection(
        tables, DIM, optimizer=hotrows.optim.Adam(lr=0.01), device="cuda", **{**CACHE, **arguments}
    )


def train_each(step, bags, batches=None):
    one = hotrows.graphed(step, bags)
    outputs = [one(batch) for batch in hotrows.lookahead(batches or make_batches(), bags, **AHEAD)]
    bags.flush()
    return one, outputs


@gpu
def test_other_ids_than_the_batches_are_not_replayed():
    bags = make_bags()

    def step(batch):
        loss = bags((batch.ids + 1) % 5).sum()
        loss.backward()
        return loss

    one, _ = train_each(step, bags, make_batches(where="cuda"))
    assert "other ids" in one.reason


@gpu
def test_a_batch_outside_of_its_iteration_runs_eagerly():
    results = []
    for arguments in ({}, {"store": "device"}):
        bags = make_bags(**arguments)

        def step(batch, bags=bags):
            loss = bags(batch.ids).sum() * batch.label.sum()
            loss.backward()
            return loss

        one, before = hotrows.graphed(step, bags), None
        for batch in hotrows.lookahead(make_batches(where="cuda"), bags, **AHEAD):
            one(batch)
            if before is not None:
                one(before)
            before = batch
        assert one.num_replayed > 0
        assert one.num_eager > NUM_STEPS
        bags.flush()
        results.append({name: bags.weight(name) for name in SIZES})
    for name in SIZES:
        assert torch.equal(results[0][name], results[1][name])


@gpu
@pytest.mark.parametrize("kind", ["twice", "never"])
def test_one_backward_pass_must_reach_the_bags(kind):
    bags = make_bags()
    weight = torch.nn.Parameter(torch.ones((), device="cuda"))

    def step(batch):
        embedded = bags(batch.ids)
        loss = ((embedded.detach() if kind == "never" else embedded) * weight).sum()
        loss.backward(retain_graph=True)
        if kind == "twice":
            loss.backward()
        return loss

    one, _ = train_each(step, bags)
    assert "one backward pass" in one.reason


@gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tables_of_several_dims(optimizer):
    """The updates of every dim are in one graph."""
    dims = {"a": 8, "b": 16, "c": 8}

    def train(graphs, **arguments):
        torch.manual_seed(0)
        # Each dim has a part of the cache, in which its batches must fit.
        tables = [hotrows.Table(name, max(num, 2000), dim=dims[name]) for name, num in SIZES.items()]
        bags = hotrows.EmbeddingBagCollection(
            tables, DIM, optimizer=OPTIMIZERS[optimizer](), device="cuda", **arguments
        )
        layer = nn.Linear(sum(dims.values()) + 4, 1).cuda()
        dense_optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)

        def step(batch):
            embedded = torch.cat([batch.dense.cuda(), *bags(batch.ids)], 1)
            loss = nn.functional.binary_cross_entropy_with_logits(layer(embedded).squeeze(1), batch.label.cuda())
            dense_optimizer.zero_grad()
            loss.backward()
            dense_optimizer.step()
            return loss.detach()

        one = hotrows.graphed(step, bags) if graphs else OptimizerOverride(dense_optimizer)(step)
        losses = [one(batch) for batch in hotrows.lookahead(make_batches(), bags, **AHEAD)]
        bags.flush()
        return one, torch.stack(losses).cpu(), {name: bags.weight(name) for name in SIZES}

    one, losses, weights = train(True, cache=800)
    assert one.reason is None
    assert one.num_replayed > 0
    for graphs, arguments in ((False, {"cache": 800}), (True, {"store": "device"})):
        _, expected, tables = train(graphs, **arguments)
        assert losses.equal(expected)
        assert all(weights[name].equal(tables[name]) for name in SIZES)


@gpu
def test_a_step_with_too_many_outputs_trains_all_the_same():
    """Its capture fails after the updates were captured."""
    bags, plain = make_bags(), make_bags()

    def steps_of(bags):
        def step(batch):
            embedded = bags(batch.ids)
            embedded.square().sum().backward()
            return [embedded.detach().sum() + i for i in range(65)]

        return step

    one, outputs = train_each(steps_of(bags), bags)
    assert "at most 64" in one.reason
    step = steps_of(plain)
    expected = [step(batch) for batch in hotrows.lookahead(make_batches(), plain, **AHEAD)]
    plain.flush()
    assert all(ours[-1].equal(theirs[-1]) for ours, theirs in zip(outputs, expected, strict=True))
    assert all(bags.weight(name).equal(plain.weight(name)) for name in SIZES)


@gpu
def test_a_learning_rate_set_by_hand_counts():
    """So does a state that was loaded: the step is captured again."""
    losses = {}
    for graphs in (True, False):
        torch.manual_seed(0)
        bags, model = make_bags(store="device"), Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)

        def step(batch, bags=bags, model=model, optimizer=optimizer):
            logits = model(batch.dense, bags(batch.ids))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        one = hotrows.graphed(step, bags) if graphs else step
        found = []
        for number, batch in enumerate(hotrows.lookahead(make_batches(where="cuda"), bags, **AHEAD)):
            found.append(one(batch).detach())
            optimizer.param_groups[0]["lr"] = 0.05 / (number + 1)
            if number == 15:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        losses[graphs] = torch.stack(found).cpu()
        assert not graphs or one.reason is None
    torch.testing.assert_close(losses[True], losses[False])
    assert not torch.equal(losses[True][0], losses[True][-1])


@gpu
def test_a_scheduler_in_the_step_is_noticed():
    bags, model = make_bags(), Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)

    def step(batch):
        loss = model(batch.dense, bags(batch.ids)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    one, _ = train_each(step, bags)
    assert "scheduler" in one.reason


@gpu
def test_dropout_repeats():
    losses = []
    for arguments in ({}, {"store": "device"}):
        bags, drop = make_bags(**arguments), nn.Dropout(0.5)
        torch.manual_seed(0)

        def step(batch, bags=bags, drop=drop):
            loss = drop(bags(batch.ids)).square().sum()
            loss.backward()
            return loss

        one, outputs = train_each(step, bags)
        assert one.reason is None
        losses.append(torch.stack([output.cpu() for output in outputs]))
    assert torch.equal(*losses)


@gpu
def test_bad_ids_raise_in_their_iteration():
    batches = make_batches()
    batches[15].ids[3, 1] = 99
    tables = [hotrows.Table(name, num) for name, num in SIZES.items()]
    bags = hotrows.EmbeddingBagCollection(tables, DIM, **CACHE, optimizer=hotrows.optim.SGD(lr=0.1), device="cuda")

    def step(batch):
        loss = bags(batch.ids).sum()
        loss.backward()
        return loss.detach()

    one = hotrows.graphed(step, bags)
    loop = hotrows.lookahead(batches, bags, **AHEAD)
    for _ in range(15):
        one(next(loop))
    with pytest.raises(hotrows.BadIdError, match=r"feature 'b', sample 3: id 99"):
        next(loop)
    assert one.num_replayed > 0
    assert bags.schedulers[0].updater.steps == 15


@gpu
def test_a_bad_batch_before_a_replay_does_not_count():
    """The host learns of the bad id after its eager step was counted, and Adam's next step depends on the count."""
    results = []
    for is_bad in (True, False):
        bags = make_bags()

        def step(batch, bags=bags):
            loss = bags(batch.ids).square().sum()
            loss.backward()
            return loss.detach()

        one = hotrows.graphed(step, bags)
        for number, batch in enumerate(hotrows.lookahead(make_batches(), bags, **AHEAD)):
            one(batch)
            if is_bad and number == 10:
                bags(torch.tensor([[1, 99, 1]], device="cuda")).sum().backward()
        with pytest.raises(hotrows.BadIdError, match="id 99") if is_bad else nullcontext():
            bags.flush()
        assert one.num_replayed > NUM_STEPS // 2
        assert bags.schedulers[0].updater.steps == NUM_STEPS
        results.append({name: bags.weight(name) for name in SIZES})
    assert all(torch.equal(results[0][name], results[1][name]) for name in SIZES)


@gpu
@pytest.mark.parametrize("dense", ["sgd", "momentum", "adam"])
def test_a_closed_step_leaves_no_trace_and_runs_eagerly(dense):
    """The same bits as a loop that is eager from the beginning cannot be expected: fused steps round differently."""
    results = []
    for graphs in (True, False):
        torch.manual_seed(0)
        bags, model = make_bags(store="device"), Net().cuda()
        kind = torch.optim.Adam if dense == "adam" else torch.optim.SGD
        more = {"momentum": 0.9} if dense == "momentum" else {}
        optimizer = kind(model.parameters(), lr=0.01, **more)
        settings = dict(optimizer.param_groups[0])

        def step(batch, bags=bags, model=model, optimizer=optimizer):
            logits = model(batch.dense, bags(batch.ids))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def epoch(step, bags=bags):
            return [step(batch) for batch in hotrows.lookahead(make_batches(where="cuda"), bags, **AHEAD)]

        if graphs:
            with hotrows.graphed(step, bags) as one:
                losses = epoch(one)
                assert optimizer.param_groups[0]["fused"]
                assert optimizer.param_groups[0]["lr"].is_cuda
            assert optimizer.param_groups[0] == settings
            assert not optimizer._optimizer_step_pre_hooks
            assert all(param.grad is None for param in model.parameters())
            assert all(not state["step"].is_cuda for state in optimizer.state.values() if "step" in state)
            losses += epoch(one)
            assert (one.num_eager, one.num_replayed) == (WARM_UP + NUM_STEPS, NUM_STEPS - WARM_UP)
        else:
            losses = epoch(step) + epoch(step)
        results.append(torch.stack(losses))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)


@gpu
@pytest.mark.parametrize("is_capturable", [True, False])
def test_optimizers_need_not_be_adapted(is_capturable):
    bags, model = make_bags(), Net().cuda()
    rate = torch.tensor(0.01, device="cuda") if is_capturable else 0.01
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=is_capturable)
    settings = dict(optimizer.param_groups[0])

    def step(batch):
        loss = model(batch.dense, bags(batch.ids)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    one = hotrows.graphed(step, bags, adapt_optimizers=False)
    for batch in hotrows.lookahead(make_batches(), bags, **AHEAD):
        one(batch)
    bags.flush()
    assert all(optimizer.param_groups[0][name] is value for name, value in settings.items())
    if is_capturable:
        assert one.reason is None
        assert one.num_replayed == NUM_STEPS - WARM_UP
    else:
        assert "not a tensor on the device" in one.reason
        assert one.num_replayed == 0


def test_on_the_cpu_the_step_runs_eagerly():
    batches = make_batches()
    ours = run(batches, graphs=True, device="cpu", **CACHE)
    assert "cpu" in ours["step"].reason
    same(ours, run(batches, graphs=False, device="cpu", **CACHE))
    same(ours, run(batches, graphs=False, device="cpu", store="device"))
