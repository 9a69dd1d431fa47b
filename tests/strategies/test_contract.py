"""What every strategy must do: train as with all rows on the device, bit for bit, whatever the cache."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import hotrows
from hotrows.batch import Batch, Jagged
from hotrows.strategies import STRATEGIES, KnownCounts, Strategy, make_strategy
from hotrows.strategies.base import CacheSettings
from tests.scenarios import OPTIMIZERS, Scenario, assert_same_values, counts_of, examples, result_of, scenarios

OTHERS = sorted(set(STRATEGIES) - {"device"})
TABLES = (hotrows.Table("a", 60), hotrows.Table("b", 90, features=("b1", "b2")), hotrows.Table("c", 5))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@dataclass
class Result:
    """The result of a training run."""

    losses: list[Tensor]
    read: list[Tensor]  # by evaluations in between
    rows: dict[str, Tensor]  # weights and state
    stats: hotrows.Stats
    has_cache: bool


def train(name: str, scenario: Scenario, size: int, device: str, leave_after: int = 3) -> Result:
    """Two epochs, the first left early, with an evaluation after every third backward pass."""
    strategy = make_strategy(name, CacheSettings(size=size, depth=2, window=4), data=knowledge_of(scenario))
    bags = strategy.make_bags(scenario.tables, 4, OPTIMIZERS[scenario.optimizer](), torch.device(device), scenario.seed)
    torch.manual_seed(scenario.seed)
    width = sum(bags.dims[table.name] * len(table.feature_names) for table in scenario.tables)
    model = torch.nn.Linear(width, 1, device=device)
    dense = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[Tensor] = []
    read: list[Tensor] = []

    def predict(ids: Tensor | Jagged) -> Tensor:
        out = bags(ids)
        parts = out if isinstance(out, tuple) else (out,)
        return model(torch.cat([part.flatten(1) for part in parts], 1).to(device))

    opened: list[Tensor] = []
    for number, (ids, is_last) in enumerate(epochs(strategy, bags, scenario, leave_after)):
        opened.append((predict(ids) - 0.3).square().mean())
        if len(opened) < scenario.passes and not is_last:
            continue
        dense.zero_grad()
        torch.stack(opened).sum().backward()
        dense.step()
        losses += [loss.detach().cpu() for loss in opened]
        opened.clear()
        if number % 3 == 0:
            bags.eval()
            with torch.no_grad():
                read.append(predict(scenario.batches[0]).cpu())
            bags.train()
    has_cache = not all(cache.holds_all_rows for cache in bags.caches)
    return Result(losses, read, result_of(bags), bags.stats(), has_cache)


def epochs(
    strategy: Strategy, bags: hotrows.EmbeddingBagCollection, scenario: Scenario, leave_after: int
) -> Iterator[tuple[Tensor | Jagged, bool]]:
    """The batches, each with a flag that is true for the last one of its epoch."""
    batches = [Batch(torch.empty(0), ids, torch.empty(0)) for ids in scenario.batches]
    for length in (min(leave_after, len(batches)), len(batches)):
        with ExitStack() as stack:
            loop = strategy.batches(batches, bags)
            if hasattr(loop, "close"):
                stack.callback(loop.close)
            for number in range(1, length + 1):
                yield next(loop).ids, number == length


def knowledge_of(scenario: Scenario) -> KnownCounts:
    return KnownCounts(lambda: counts_of(scenario))


def scenario_of(optimizer: str, jagged: bool) -> Scenario:
    random = torch.Generator().manual_seed(5)

    def skewed(num_rows: int, count: int) -> Tensor:
        return (torch.rand(count, generator=random).pow(3) * num_rows).long()

    batches: list[Tensor | Jagged] = []
    for _ in range(10):
        if jagged:
            lengths = torch.randint(0, 4, (4, 12), generator=random)
            values = [skewed(rows, int(num)) for rows, num in zip((60, 90, 90, 5), lengths.sum(1), strict=True)]
            batches.append(Jagged(torch.cat(values), lengths))
        else:
            batches.append(torch.stack([skewed(rows, 12) for rows in (60, 90, 90, 5)], 1))
    return Scenario(TABLES, "sum", optimizer, tuple(batches), passes=1, accumulate=False, seed=1)


def assert_same(found: Result, expected: Result, name: str, device: str) -> None:
    # rows that are updated on a CPU, and a model on a GPU: the bits of a sum may differ there
    exact = not (name == "host" and device == "cuda")
    assert found.rows.keys() == expected.rows.keys()
    pairs = [(found.rows[key], expected.rows[key]) for key in expected.rows]
    pairs += zip(found.losses, expected.losses, strict=True)
    pairs += zip(found.read, expected.read, strict=True)
    for ours, theirs in pairs:
        if exact:
            assert_same_values(ours, theirs)
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("jagged", [False, True], ids=["one id", "several ids"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "row-wise-adagrad", "adam"])
@pytest.mark.parametrize("name", OTHERS)
def test_equal_to_all_rows_on_the_device(name: str, optimizer: str, jagged: bool, device: str) -> None:
    scenario = scenario_of(optimizer, jagged)
    expected = train("device", scenario, 1, device)
    evicting = train(name, scenario, 48, device)
    overflowing = train(name, scenario, 4, device)
    assert_same(evicting, expected, name, device)
    assert_same(overflowing, expected, name, device)
    if evicting.has_cache:
        assert evicting.stats.evictions > 0
        assert overflowing.stats.overflow > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OTHERS)
@settings(max_examples=examples(25), deadline=None)
@given(scenario=scenarios(), size=st.integers(1, 40), leave_after=st.integers(1, 9))
def test_equal_whatever_is_trained(name: str, device: str, scenario: Scenario, size: int, leave_after: int) -> None:
    expected = train("device", scenario, 1, device, leave_after)
    assert_same(train(name, scenario, size, device, leave_after), expected, name, device)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_bad_batch_changes_nothing(name: str) -> None:
    scenario = scenario_of("adagrad", jagged=False)
    strategy = make_strategy(name, CacheSettings(size=48), data=knowledge_of(scenario))
    bags = strategy.make_bags(TABLES, 4, OPTIMIZERS["adagrad"](), torch.device("cpu"), 0)
    before = result_of(bags)
    bad = Batch(torch.empty(0), torch.tensor([[3, 90, 1, 1]]), torch.empty(0))

    def epoch() -> None:
        for batch in strategy.batches([bad], bags):
            bags(batch.ids).sum().backward()

    with pytest.raises(hotrows.BadIdError, match="id 90 is not in table 'b'"):
        epoch()
    after = result_of(bags)
    assert all(torch.equal(after[key], values) for key, values in before.items())
