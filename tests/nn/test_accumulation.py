"""One backward pass is one optimizer step, however many forward passes it covers."""

import gc

import pytest
import torch

import hotrows
from hotrows.cache import overflow
from hotrows.cache.row_cache import RowCache
from hotrows.cache.streams import CacheStreams
from hotrows.runtime import cuda_private

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
OPTIMIZERS = [hotrows.optim.SGD, hotrows.optim.Adagrad, hotrows.optim.Adam]


def bag_of(cache: int | str, optimizer: hotrows.optim.RowOptimizer, device: str = "cpu") -> hotrows.EmbeddingBag:
    return hotrows.EmbeddingBag(50, 4, mode="sum", cache=cache, optimizer=optimizer, device=device)


def loss_of(bag: hotrows.EmbeddingBag, ids: torch.Tensor) -> torch.Tensor:
    return (bag(ids.unsqueeze(1)) - 1.0).square().sum()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_passes_then_two_backwards(optimizer: type[hotrows.optim.RowOptimizer], device: str) -> None:
    """Both passes overflow a cache of 3 rows and share rows: neither may write an old copy over the other's update."""
    random = torch.Generator().manual_seed(0)
    pairs = [torch.randint(0, 50, (2, 12), generator=random) for _ in range(20)]

    def train(cache: int | str) -> torch.Tensor:
        bag = bag_of(cache, optimizer(lr=0.1), device)
        for first, second in pairs:
            losses = [loss_of(bag, first), loss_of(bag, second)]
            losses[1].backward()
            losses[0].backward()
        return bag.weight()

    expected = train("100%")
    for cache in (1, 3, 12, 20):
        assert torch.equal(train(cache), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_backward_twice_over_a_kept_graph(device: str) -> None:
    def train(cache: int | str) -> torch.Tensor:
        bag = bag_of(cache, hotrows.optim.Adagrad(lr=0.1), device)
        kept = loss_of(bag, torch.arange(10))
        kept.backward(retain_graph=True)
        for start in range(10, 50, 5):
            loss_of(bag, torch.arange(start, start + 5)).backward()  # takes the slots of the first
        kept.backward()
        return bag.weight()

    expected = train("100%")
    for cache in (2, 10, 15):
        assert torch.equal(train(cache), expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_backward_pass_over_the_same_forward_passes_is_one_step(
    optimizer: type[hotrows.optim.RowOptimizer],
) -> None:
    """With `retain_graph`. In a lookahead loop the rows of the second backward pass are still in their slots."""
    random = torch.Generator().manual_seed(0)
    data = [torch.randint(0, 50, (6, 1), generator=random) for _ in range(12)]

    def train(cache: int | str, looks_ahead: bool) -> torch.Tensor:
        bag = bag_of(cache, optimizer(lr=0.1))
        for ids in hotrows.lookahead(data, bag, depth=2, ids=lambda ids: ids) if looks_ahead else data:
            loss = (bag(ids) - 1.0).square().sum() + (bag(ids) - 2.0).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        assert bag.row_state("weight")["step"] == 2 * len(data)
        return bag.weight()

    expected = train("100%", looks_ahead=False)
    for cache in (4, 25, "100%"):
        assert torch.equal(train(cache, looks_ahead=True), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_kept_graph_takes_part_in_the_step_of_a_new_one(
    optimizer: type[hotrows.optim.RowOptimizer], device: str
) -> None:
    """The new forward pass is reached first, when the other one is not open any more."""

    def train(cache: int | str) -> torch.Tensor:
        bag = bag_of(cache, optimizer(lr=0.1), device)
        for start in range(0, 40, 4):
            kept = loss_of(bag, torch.arange(start, start + 4))
            kept.backward(retain_graph=True)
            (kept + loss_of(bag, torch.arange(start + 2, start + 8))).backward()
        assert bag.row_state("weight")["step"] == 20
        return bag.weight()

    expected = train("100%")
    for cache in (1, 5, 12):
        assert torch.equal(train(cache), expected)


def test_a_pass_that_is_thrown_away_gives_its_slots_back() -> None:
    bag = bag_of(4, hotrows.optim.SGD(lr=0.1))
    for start in range(0, 40, 4):
        loss_of(bag, torch.arange(start, start + 4))  # no backward pass, and nobody keeps the graph
        gc.collect()
    assert bag.stats().overflow == 0


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_accumulate_is_one_step_of_the_sum(kind: type[hotrows.optim.RowOptimizer]) -> None:
    parts = [torch.tensor([0, 1, 2]), torch.tensor([2, 3, 2]), torch.tensor([7, 0, 9])]

    def train(cache: int | str, together: bool) -> torch.Tensor:
        bag = bag_of(cache, kind(lr=0.1))
        if together:
            torch.stack([loss_of(bag, ids) for ids in parts]).sum().backward()
        else:
            with bag.accumulate():
                for ids in parts:
                    loss_of(bag, ids).backward()
        return bag.weight()

    expected = train("100%", together=True)
    for cache in ("100%", 1, 4):
        assert torch.equal(train(cache, together=False), expected)
        assert torch.equal(train(cache, together=True), expected)


def test_accumulate_applies_nothing_if_the_block_fails() -> None:
    bag = bag_of("100%", hotrows.optim.SGD(lr=0.1))
    before = bag.weight()

    def fail() -> None:
        with bag.accumulate():
            loss_of(bag, torch.arange(3)).backward()
            raise KeyError("the user's")

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(bag.weight(), before)
    with bag.accumulate():
        loss_of(bag, torch.arange(3)).backward()
    assert not torch.equal(bag.weight(), before)


def test_accumulate_cannot_be_nested() -> None:
    bag = bag_of("100%", hotrows.optim.SGD(lr=0.1))
    with bag.accumulate(), pytest.raises(RuntimeError, match="open already"), bag.accumulate():
        pass


def test_a_backward_pass_that_fails_leaves_no_gradients_behind() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError("the user's")

    bag = bag_of("100%", hotrows.optim.SGD(lr=0.1))
    # Autograd runs the nodes in reverse order: the second pass is reached, and then `Fails` of the first one.
    failing = Fails.apply(loss_of(bag, torch.arange(3)))
    reached = loss_of(bag, torch.arange(3, 6))
    with pytest.raises(ArithmeticError):
        (failing + reached).backward()
    del failing, reached
    gc.collect()
    before = bag.weight()
    loss_of(bag, torch.arange(40, 43)).backward()
    changed = (bag.weight() != before).any(1).nonzero().squeeze(1)
    assert changed.tolist() == [40, 41, 42]


def test_a_backward_pass_after_one_that_failed_is_applied() -> None:
    bag = bag_of("100%", hotrows.optim.SGD(lr=0.1))
    first, second = loss_of(bag, torch.arange(3)), loss_of(bag, torch.arange(10, 13))
    third = loss_of(bag, torch.arange(20, 23))

    def fail(grad: torch.Tensor) -> None:
        raise ArithmeticError("the user's")

    broken = first * 1.0
    broken.register_hook(fail)
    with pytest.raises(ArithmeticError):
        (broken + second).backward()
    before = bag.weight()
    third.backward()
    changed = (bag.weight() != before).any(1).nonzero().squeeze(1)
    assert changed.tolist() == [20, 21, 22]


@pytest.mark.parametrize("device", DEVICES)
def test_training_goes_on_after_inference_mode(device: str) -> None:
    bag = bag_of(4, hotrows.optim.SGD(lr=0.1), device)
    ids = torch.arange(12)
    loss_of(bag, ids[:3]).backward()
    with torch.inference_mode():
        assert torch.equal(bag(ids.unsqueeze(1)).cpu(), bag.weight()[:12])
    for _ in range(3):
        loss_of(bag, ids).backward()
    other = bag_of("100%", hotrows.optim.SGD(lr=0.1), device)
    for part in (ids[:3], ids, ids, ids):
        loss_of(other, part).backward()
    assert torch.equal(bag.weight(), other.weight())


def test_memory_that_runs_out_loses_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    bag, other = bag_of(4, hotrows.optim.SGD(lr=0.1)), bag_of("100%", hotrows.optim.SGD(lr=0.1))
    for module in (bag, other):
        loss_of(module, torch.arange(4)).backward()

    def fail(cache: RowCache, streams: CacheStreams, num: int) -> None:
        raise MemoryError("simulated")

    with monkeypatch.context() as patch:
        patch.setattr(overflow, "reserve", fail)
        with pytest.raises(MemoryError):
            loss_of(bag, torch.arange(10, 30))
    assert not bag.schedulers[0].in_flight
    for module in (bag, other):
        loss_of(module, torch.arange(2, 30)).backward()
    assert torch.equal(bag.weight(), other.weight())


@pytest.mark.parametrize("device", DEVICES)
def test_slots_of_released_passes_count_as_used_while_an_older_one_is_open(device: str) -> None:
    def train(cache: int | str) -> torch.Tensor:
        bag = hotrows.EmbeddingBag(200, 4, mode="sum", cache=cache, optimizer=hotrows.optim.SGD(lr=0.1), device=device)
        first, second = loss_of(bag, torch.arange(40)), loss_of(bag, torch.arange(40, 80))
        second.backward()
        third = loss_of(bag, torch.arange(80, 120))
        third.backward()
        first.backward()
        return bag.weight()

    assert torch.equal(train(100), train("100%"))


def test_loading_rows_between_forward_and_backward() -> None:
    def train(cache: int | str) -> torch.Tensor:
        bag = bag_of(cache, hotrows.optim.SGD(lr=0.1))
        loss = loss_of(bag, torch.arange(20))
        bag.load_weight(torch.ones(50, 4))
        loss.backward()
        return bag.weight()

    assert torch.equal(train(3), train("100%"))


@pytest.mark.parametrize("device", DEVICES)
def test_reading_changes_nothing(device: str) -> None:
    bag = bag_of(5, hotrows.optim.SGD(lr=0.1), device)
    loss_of(bag, torch.tensor([1, 2, 3])).backward()
    slots = bag.caches[0].planner.slots
    rows, priority, last_used = slots.row.clone(), slots.priority.clone(), slots.last_used.clone()
    hits = bag.stats().hits
    everything = torch.arange(50).unsqueeze(1)
    with torch.no_grad():
        read = bag(everything)
    bag.eval()
    also = bag(everything)
    assert also.requires_grad, "as in PyTorch, whose eval mode does not stop gradients"
    assert torch.equal(read, also)
    assert torch.equal(read.cpu(), bag.weight())
    assert torch.equal(slots.row, rows)
    assert torch.equal(slots.priority[:-1], priority[:-1])
    assert torch.equal(slots.last_used[:-1], last_used[:-1])
    assert bag.stats().hits == hits
    assert bag.stats().read_rows == 100


def test_autocast_changes_neither_dtype_nor_rows() -> None:
    def train(cast: bool) -> torch.Tensor:
        bag = bag_of("100%", hotrows.optim.SGD(lr=0.1))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
            out = bag(torch.arange(6).unsqueeze(1))
            assert out.dtype == torch.float32
            loss = (out - 1.0).square().sum()
        loss.backward()
        return bag.weight()

    assert torch.equal(train(True), train(False))


def test_half_precision_gradients_are_taken() -> None:
    bag = bag_of("100%", hotrows.optim.SGD(lr=1.0))
    before = bag.weight()
    out = bag(torch.tensor([[3]]))
    out.bfloat16().sum().backward()
    assert torch.equal(bag.weight()[3], before[3] - 1.0)


@pytest.mark.parametrize("early", [False, True])
def test_rows_are_updated_as_soon_as_their_gradient_is_there(early: bool) -> None:
    """In a captured step, rows are updated beside the rest of the backward pass; elsewhere, after it."""
    tables = [hotrows.Table("a", 20), hotrows.Table("b", 20)]
    bags = hotrows.EmbeddingBagCollection(tables, 4, cache=40, optimizer=hotrows.optim.SGD(lr=0.1))
    layer = torch.nn.Linear(3, 8)
    embedded = bags(torch.arange(8).view(4, 2))
    if early:
        cuda_private.run_first_in_backward(embedded)
    order: list[str] = []
    node = embedded.grad_fn
    while node.name() != "PooledRowsBackward":
        node = node.next_functions[0][0]
    node.register_prehook(lambda grads: order.append("rows"))
    layer.weight.register_hook(lambda grad: order.append("layer"))
    (layer(torch.ones(4, 3)) * embedded.flatten(1)).sum().backward()
    is_early = early and not cuda_private.SAFE  # there is no public call that changes the order
    assert order == (["rows", "layer"] if is_early else ["layer", "rows"])
