"""Training runs drawn by Hypothesis, and three ways to carry them out: in any cache, uncached, and in plain PyTorch."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import hypothesis.strategies as st
import torch
from torch import Tensor

import hotrows
from hotrows.batch import Jagged
from hotrows.cache.tier import Cached
from hotrows.cache.transfer import Transfer
from hotrows.ops.swap import Moves
from hotrows.stores import Store
from tests.stores.dict_store import Dict


def examples(number: int) -> int:
    """How many runs to draw: HOTROWS_EXAMPLES times the usual number. On a GPU most runs compile kernels."""
    return max(3, int(number * float(os.environ.get("HOTROWS_EXAMPLES", "1"))))


# The numbers under the roots are kept away from zero, where rounding errors of a gradient would decide the step.
OPTIMIZERS = {
    "sgd": lambda: hotrows.optim.SGD(lr=0.3),
    "sgd-decay": lambda: hotrows.optim.SGD(lr=0.3, weight_decay=0.05),
    "adagrad": lambda: hotrows.optim.Adagrad(lr=0.2, lr_decay=0.1, initial_accumulator_value=0.1),
    "row-wise-adagrad": lambda: hotrows.optim.RowWiseAdagrad(lr=0.2, initial_accumulator_value=0.1),
    "adam": lambda: hotrows.optim.Adam(lr=0.05, betas=(0.8, 0.95), eps=1e-2),
}


@dataclass(frozen=True)
class Scenario:
    """What is trained on; the same whatever the cache."""

    tables: tuple[hotrows.Table, ...]
    mode: str
    optimizer: str
    batches: tuple[Tensor | Jagged, ...]
    passes: int  # forward passes per backward pass
    accumulate: bool  # add up over two backward passes
    seed: int

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self.tables)


@dataclass(frozen=True)
class Setting:
    """How the rows are cached. The result must not depend on it."""

    cache: int | str
    policy: str = "lookahead"
    index: str = "auto"
    depth: int | None = None  # None: without lookahead
    window: int = 8
    reads: bool = False  # read without training in between
    stop_after: int | None = None  # leave the loop, and go on without lookahead
    slow: str | None = None  # "moves" or "training": the other one runs ahead as far as the rules let it
    coalesce: int | None = None  # how many batches are planned as one; None leaves it to the scheduler
    transfer: str = "zero copy"  # or "blocks"
    row_order: bool = False  # the store has the rows in an order of its own
    store: str = "ram"  # or "tier", a cache in host memory in front of another store, or "dict", a store of the user's
    graphed: bool = False  # every batch is one step of `hotrows.graphed`
    device: str = "cpu"


class SlowTransfer:
    """A transfer whose moves are slow."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self.waits, self.device_bytes = transfer.waits, transfer.device_bytes

    def move(self, store: Store, records: Tensor, moves: Moves) -> None:
        take_time(records.device)
        self._transfer.move(store, records, moves)
        take_time(records.device)


def take_time(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda._sleep(400_000)
    else:
        time.sleep(0.0005)


UNCACHED = Setting("100%")
STORES = {"ram": "ram", "tier": Cached("ram", num_slots=9), "dict": Dict()}


@st.composite
def scenarios(draw: st.DrawFn, several_passes: bool = True) -> Scenario:
    dims = draw(st.sampled_from([(4,), (8, 5)]))
    num_tables = draw(st.integers(1, 3))
    tables = tuple(
        hotrows.Table(
            f"t{i}",
            draw(st.integers(1, 40)),
            dim=draw(st.sampled_from(dims)),
            features=draw(st.sampled_from([None, (f"a{i}", f"b{i}")])),
        )
        for i in range(num_tables)
    )
    num_features = sum(len(table.feature_names) for table in tables)
    sizes = [table.num_rows for table in tables for _ in table.feature_names]
    mode = draw(st.sampled_from(["sum", "mean", "max"]))
    jagged = draw(st.booleans())
    weighted = jagged and mode == "sum" and draw(st.booleans())
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batches: list[Tensor | Jagged] = []
    for _ in range(draw(st.integers(1, 9))):
        size = draw(st.integers(1, 8))
        if jagged:
            lengths = torch.randint(0, 4, (num_features, size), generator=random)
            values = [_skewed(rows, int(n), random) for rows, n in zip(sizes, lengths.sum(1).tolist(), strict=True)]
            weights = torch.rand(int(lengths.sum()), generator=random) if weighted else None
            batches.append(Jagged(torch.cat(values), lengths, weights))
        else:
            batches.append(torch.stack([_skewed(rows, size, random) for rows in sizes], 1))
    return Scenario(
        tables=tables,
        mode=mode,
        optimizer=draw(st.sampled_from(sorted(OPTIMIZERS))),
        batches=tuple(batches),
        passes=draw(st.integers(1, 3)) if several_passes else 1,
        accumulate=several_passes and draw(st.integers(0, 4)) == 0,
        seed=draw(st.integers(0, 1000)),
    )


@st.composite
def settings_for(draw: st.DrawFn, num_rows: int, device: str) -> Setting:
    return Setting(
        cache=draw(st.one_of(st.integers(1, max(1, num_rows // 3)), st.integers(1, num_rows))),
        policy=draw(st.sampled_from(sorted(hotrows.POLICIES))),
        index=draw(st.sampled_from(["auto", *sorted(hotrows.INDEXES)])),
        depth=draw(st.one_of(st.none(), st.integers(0, 8))),
        window=draw(st.integers(1, 12)),
        reads=draw(st.booleans()),
        stop_after=draw(st.one_of(st.none(), st.integers(1, 5))),
        slow=draw(st.sampled_from([None, "moves", "training"])),
        coalesce=draw(st.sampled_from([None, 2, 4])),
        transfer=draw(st.sampled_from(["zero copy", "zero copy", "blocks"])),
        row_order=draw(st.integers(0, 3)) == 0,
        store=draw(st.sampled_from(["ram", "ram", "tier", "dict"])),
        graphed=draw(st.booleans()),
        device=device,
    )


def _skewed(num_rows: int, count: int, random: torch.Generator) -> Tensor:
    """Ids, a few of which are frequent."""
    return (torch.rand(count, generator=random).pow(3) * num_rows).long()


def counts_of(scenario: Scenario) -> dict[str, Tensor]:
    """How often each id is said to occur: not falling with the id, so that a row order changes the rows' numbers."""
    random = torch.Generator().manual_seed(scenario.seed)
    return {table.name: torch.randint(0, 50, (table.num_rows,), generator=random) for table in scenario.tables}


def make_bags(scenario: Scenario, setting: Setting) -> hotrows.EmbeddingBagCollection:
    bags = hotrows.EmbeddingBagCollection(
        scenario.tables,
        mode=scenario.mode,
        cache=setting.cache,
        policy=setting.policy,
        index=setting.index,
        optimizer=OPTIMIZERS[scenario.optimizer](),
        device=setting.device,
        seed=scenario.seed,
        store=STORES[setting.store],
        transfer=hotrows.BlockTransmitter(buffer_rows=3) if setting.transfer == "blocks" else None,
        row_order=hotrows.RowOrder(counts_of(scenario)) if setting.row_order else None,
    )
    for scheduler in bags.schedulers:
        scheduler.coalesce = setting.coalesce
        if setting.slow == "moves":
            scheduler.cache.transfer = SlowTransfer(scheduler.cache.transfer)
    return bags


def train(scenario: Scenario, setting: Setting) -> Iterator[hotrows.EmbeddingBagCollection]:
    """Train, yielding after every backward pass."""
    bags = make_bags(scenario, setting)
    batches = [
        batch.to(setting.device) if setting.device != "cpu" and i % 2 else batch
        for i, batch in enumerate(scenario.batches)
    ]
    if setting.graphed and scenario.passes == 1 and not scenario.accumulate:
        yield from _train_graphed(scenario, setting, bags, batches)
        return
    with ExitStack() as stack:
        losses: list[Tensor] = []
        updates = 0
        for number, ids in enumerate(_loop(batches, bags, setting)):
            if setting.reads:
                with torch.no_grad():
                    bags(batches[(number * 7) % len(batches)])
            if scenario.accumulate and updates % 2 == 0 and not losses:
                stack.enter_context(bags.accumulate())
            losses.append(loss_of(bags(ids), scenario.seed))
            if len(losses) == scenario.passes or number == len(batches) - 1:
                if setting.slow == "training":
                    take_time(bags.device)
                torch.stack(losses).sum().backward()
                losses.clear()
                updates += 1
                if scenario.accumulate and updates % 2 == 0:
                    stack.close()
                yield bags
    yield bags


def _train_graphed(
    scenario: Scenario, setting: Setting, bags: hotrows.EmbeddingBagCollection, batches: list[Tensor | Jagged]
) -> Iterator[hotrows.EmbeddingBagCollection]:
    def forward_and_backward(ids: Tensor | Jagged) -> Tensor:
        loss = loss_of(bags(ids), scenario.seed)
        loss.backward()
        return loss.detach()

    with hotrows.graphed(forward_and_backward, bags) as step:
        for number, ids in enumerate(_loop(batches, bags, setting)):
            if setting.reads:
                with torch.no_grad():
                    bags(batches[(number * 7) % len(batches)])
            if setting.slow == "training":
                take_time(bags.device)
            step(ids)
            yield bags
    yield bags


def _loop(
    batches: list[Tensor | Jagged], bags: hotrows.EmbeddingBagCollection, setting: Setting
) -> Iterator[Tensor | Jagged]:
    if setting.depth is None:
        yield from batches
        return
    done = 0
    for ids in hotrows.lookahead(batches, bags, depth=setting.depth, window=setting.window, ids=lambda ids: ids):
        yield ids
        done += 1
        if done == setting.stop_after:
            break
    yield from batches[done:]


def loss_of(out: Tensor | tuple[Tensor, ...], seed: int) -> Tensor:
    """A smooth loss that gives every row of a bag its own gradient.

    It is a mean over the columns, so that training converges. Steps that overshoot multiply the rounding errors of all
    steps before (six steps of SGD turned 6e-8 into 3e-5). Then the weights cannot be compared with those of PyTorch.
    """
    flat = torch.cat([part.flatten(1) for part in (out if isinstance(out, tuple) else (out,))], 1)
    mixed = flat @ torch.rand(flat.shape[1], 2, generator=torch.Generator().manual_seed(seed)).to(flat.device)
    return (mixed / flat.shape[1] - 0.3).square().mean()


def result_of(bags: hotrows.EmbeddingBagCollection) -> dict[str, Tensor]:
    """Every table and its optimizer state."""
    found = {}
    for table in bags.tables:
        found[table.name] = bags.weight(table.name)
        for part, values in bags.row_state(table.name).items():
            found[f"{table.name}.{part}"] = values.clone()
    return found


def finish(scenario: Scenario, setting: Setting) -> dict[str, Tensor]:
    for bags in train(scenario, setting):
        last = bags
    return result_of(last)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert_same_values(found[name], values)


def assert_same_values(found: Tensor, expected: Tensor) -> None:
    """Every bit is the same. NaN equals NaN, because training may diverge."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def train_in_torch(scenario: Scenario) -> dict[str, Tensor]:
    """The same training with nn.EmbeddingBag and torch.optim on sparse gradients."""
    bags = make_bags(scenario, UNCACHED)
    plain = {table.name: torch.nn.Parameter(bags.weight(table.name)) for table in scenario.tables}
    steppers = {name: _torch_optimizer(scenario.optimizer, weight) for name, weight in plain.items()}
    touched: dict[str, list[Tensor]] = {name: [] for name in plain}
    losses: list[Tensor] = []
    updates = 0
    for number, ids in enumerate(scenario.batches):
        out = []
        column = start = 0
        for table in scenario.tables:
            for _ in table.feature_names:
                if isinstance(ids, Jagged):
                    lengths = ids.lengths[column]
                    stop = start + int(lengths.sum())
                    mine, weights = ids.values[start:stop], None if ids.weights is None else ids.weights[start:stop]
                    offsets = lengths.cumsum(0) - lengths
                    start = stop
                else:
                    mine, weights, offsets = ids[:, column], None, torch.arange(ids.shape[0])
                touched[table.name].append(mine)
                out.append(
                    torch.nn.functional.embedding_bag(
                        mine, plain[table.name], offsets, mode=scenario.mode, per_sample_weights=weights
                    )
                )
                column += 1
        losses.append(loss_of(tuple(out), scenario.seed))
        if len(losses) == scenario.passes or number == len(scenario.batches) - 1:
            torch.stack(losses).sum().backward()
            losses.clear()
            updates += 1
            last = number == len(scenario.batches) - 1
            if scenario.accumulate and updates % 2 and not last:
                continue
            for name, weight in plain.items():
                rows = torch.unique(torch.cat(touched[name]))
                grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                steppers[name](rows, grad[rows])
                weight.grad = None
                touched[name].clear()
    return {name: weight.detach() for name, weight in plain.items()}


def _torch_optimizer(name: str, weight: torch.nn.Parameter):
    """A step (rows, their gradients) of the torch optimizer with the same numbers, or the formula if torch has none."""
    if name in ("adagrad", "adam"):
        ours = OPTIMIZERS[name]()
        numbers = {key: ours.param_groups[0][key] for key in ours.param_groups[0] if key != "params"}
        numbers = {key: numbers[key] for key in ("lr", "lr_decay", "eps", "betas") if key in numbers}
        if name == "adagrad":
            theirs = torch.optim.Adagrad([weight], initial_accumulator_value=0.1, **numbers)
        else:
            theirs = torch.optim.SparseAdam([weight], **numbers)

        def step(rows: Tensor, grads: Tensor) -> None:
            with torch.sparse.check_sparse_tensor_invariants():
                weight.grad = torch.sparse_coo_tensor(rows.unsqueeze(0), grads, weight.shape)
                theirs.step()

        return step

    total = torch.full((weight.shape[0], 1), 0.1)

    def formula(rows: Tensor, grads: Tensor) -> None:
        with torch.no_grad():
            if name == "row-wise-adagrad":
                total[rows] += grads.square().mean(1, keepdim=True)
                weight[rows] -= 0.2 * grads / (total[rows].sqrt() + 1e-10)
            else:
                decay = 0.05 if name == "sgd-decay" else 0.0
                weight[rows] -= 0.3 * (grads + decay * weight[rows])

    return formula
