"""Under `torch.compile` a model trains as it does without it, and what is compiled is the dense part alone."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import hotrows
from hotrows.models import make_model

# PyTorch's compiler hides these warnings about its own code, unless they are errors.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
]

STEPS = 20
MODELS = {
    "dlrm": {"bottom": (8,), "top": (8,)},
    "wide-deep": {"hidden": (8,)},
    "deepfm": {"hidden": (8,)},
    "dcn": {"hidden": (8,), "num_cross": 2},
    "dcn-v2": {"hidden": (8,), "num_cross": 2},
}
HAS_CPP_COMPILER = any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


class FullModel(torch.nn.Module):
    """Bags, of which a batch needs about half of the cache, and a model on top of them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.over_bags = make_model(name, num_dense=3, num_features=4, dim=4, **MODELS[name])
        self.bags = hotrows.EmbeddingBagCollection(
            [hotrows.Table(f"t{i}", 50) for i in range(4)],
            dim=self.over_bags.embedding_dim,
            cache=110,
            optimizer=hotrows.optim.Adagrad(lr=0.1),
            device="cpu",
        )

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        return self.over_bags(dense, self.bags(ids))


def batches() -> list[hotrows.Batch]:
    random = torch.Generator().manual_seed(1)
    return [
        hotrows.Batch(
            dense=torch.randn(16, 3, generator=random),
            ids=torch.randint(50, (16, 4), generator=random),
            label=torch.randint(2, (16,), generator=random).float(),
        )
        for _ in range(STEPS)
    ]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def train(
    name: str, looks_ahead: bool, backend: str | None = None, compiles_step: bool = False
) -> tuple[list[float], Tensor, hotrows.Stats]:
    """Losses, the rows of all tables, and what happened in the cache. Compiled if there is a backend."""
    model = FullModel(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    called: Callable[[Tensor, Tensor], Tensor] = model
    if backend is not None and not compiles_step:
        called = torch.compile(model, backend=backend)

    def step(dense: Tensor, ids: Tensor, label: Tensor) -> Tensor:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(called(dense, ids), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    if backend is not None and compiles_step:
        step = torch.compile(step, backend=backend)
    losses = []
    for number, batch in enumerate(hotrows.lookahead(batches(), model.bags) if looks_ahead else batches()):
        # Whatever would be compiled in every step, or whenever the cache changes, is an error in the later steps.
        with torch.compiler.set_stance("default" if number < 3 or backend is None else "fail_on_recompile"):
            losses.append(step(batch.dense, batch.ids, batch.label).item())
    rows = torch.cat([model.bags.weight(table.name) for table in model.bags.tables])
    return losses, rows, model.bags.stats()


def check(name: str, backend: str, looks_ahead: bool, compiles_step: bool = False) -> None:
    expected, expected_rows, expected_stats = train(name, looks_ahead)
    losses, rows, stats = train(name, looks_ahead, backend, compiles_step)
    assert losses == pytest.approx(expected, rel=0, abs=1e-6)
    torch.testing.assert_close(rows, expected_rows, rtol=0, atol=1e-5)
    assert (stats.batches, stats.misses) == (STEPS, expected_stats.misses)
    assert stats.immediate_plans == (0 if looks_ahead else STEPS), "lookahead's plans are found by the ids of the batch"


@pytest.mark.parametrize("looks_ahead", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_trains_like_the_model(name: str, looks_ahead: bool) -> None:
    check(name, "aot_eager", looks_ahead)


@pytest.mark.skipif(not HAS_CPP_COMPILER, reason="PyTorch's compiler needs a C++ compiler for the CPU")
@pytest.mark.parametrize("looks_ahead", [False, True])
def test_a_model_compiled_to_code_trains_like_the_model(looks_ahead: bool) -> None:
    """With the default backend, for one model: it takes half a minute where PyTorch has not cached the code."""
    check("dlrm", "inductor", looks_ahead)


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_a_compiled_training_step_trains_like_the_step(looks_ahead: bool) -> None:
    check("dlrm", "aot_eager", looks_ahead, compiles_step=True)


def test_many_bags_that_are_called_differently() -> None:
    """One function of hotrows runs for all of them, and PyTorch compiles a function a few times only."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.bags = torch.nn.ModuleList(
                hotrows.EmbeddingBag(30, 4, mode="sum", cache=20, optimizer=hotrows.optim.SGD(lr=0.1), device="cpu")
                for _ in range(12)
            )
            self.last = torch.nn.Linear(4 * 12, 1)

        def forward(self, ids: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
            calls = [(ids.view(-1, 2),), (ids, offsets), (ids, offsets, weights), (ids.view(-1, 2), None, None)]
            pooled = [bag(*calls[i % len(calls)]) for i, bag in enumerate(self.bags)]
            return self.last(torch.cat(pooled, dim=1)).square().mean()

    found = []
    for backend in (None, "aot_eager"):
        model = Model()
        called = model if backend is None else torch.compile(model, backend=backend)
        for size in (8, 10, 12):
            called(torch.arange(size), torch.arange(0, size, 2), torch.ones(size)).backward()
        found.append(torch.cat([bag.weight() for bag in model.bags]))
    assert torch.equal(*found)


def test_a_whole_graph_is_refused() -> None:
    model = torch.compile(FullModel("dcn"), backend="aot_eager", fullgraph=True)
    batch = batches()[0]
    with pytest.raises(RuntimeError, match=r"EmbeddingBagCollection\.forward"):
        model(batch.dense, batch.ids)


PROGRAM = """
import torch, hotrows
from hotrows.runtime import cuda_private
assert cuda_private.SAFE
found = []
for compiles in (False, True):
    bags = hotrows.EmbeddingBagCollection([hotrows.Table("a", 50)], 4, cache=30, optimizer=hotrows.optim.Adam(lr=0.1))
    torch.manual_seed(0)
    model = torch.nn.Sequential(bags, torch.nn.Flatten(), torch.nn.Linear(4, 1))
    def step(ids):
        model(ids).square().sum().backward()
    step = torch.compile(step, backend="aot_eager") if compiles else step
    batches = torch.randint(50, (6, 8, 1))
    for ids in hotrows.lookahead(batches, bags, ids=lambda batch: batch):
        step(ids)
    assert bags.stats().immediate_plans == 0
    found.append(bags.weight("a"))
assert torch.equal(*found)
"""


def test_without_private_calls() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "HOTROWS_SAFE": "1"}, check=True)
