"""Several threads, forked and spawned processes, and programs that end in the middle of a loop."""

import copy
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hotrows

TABLES = [hotrows.Table("a", 300), hotrows.Table("b", 100)]
TABLES_OF_TWO_DIMS = [hotrows.Table("a", 300, dim=4), hotrows.Table("b", 100, dim=8)]
NUM_READS = int(os.environ.get("HOTROWS_THREAD_READS", "60"))  # of each thread
NUM_THREADS = 8


def make(
    cache: int | str = 40, tables: list[hotrows.Table] = TABLES, **arguments: object
) -> hotrows.EmbeddingBagCollection:
    dim = None if tables is TABLES_OF_TWO_DIMS else 4
    return hotrows.EmbeddingBagCollection(
        tables, dim, cache=cache, optimizer=hotrows.optim.Adagrad(lr=0.1), **arguments
    )  # fmt: skip


def read_all(bags: hotrows.EmbeddingBagCollection, ids: Tensor) -> Tensor:
    """What a read returns, as one tensor."""
    found = bags(ids)
    return found if isinstance(found, Tensor) else torch.cat(found, 1)


def batches(num: int, size: int = 8, seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.stack([torch.randint(t.num_rows, (size,), generator=random) for t in TABLES], 1) for _ in range(num)]


def run_all(works: list[Callable[[], None]]) -> None:
    """Run each in a thread of its own, and raise the first error."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("index", sorted(hotrows.INDEXES))
def test_threads_that_read_get_the_right_rows(index: str) -> None:
    bags = make(index=index).eval()
    rows = torch.cat([bags.weight("a"), bags.weight("b")])

    def read(seed: int) -> None:
        for ids in batches(NUM_READS, seed=seed):
            found = bags(ids)
            assert torch.equal(found, rows[torch.stack([ids[:, 0], ids[:, 1] + 300], 1)])

    run_all([lambda seed=seed: read(seed) for seed in range(NUM_THREADS)])


@pytest.mark.parametrize("tables", [TABLES, TABLES_OF_TWO_DIMS], ids=["one dim", "two dims"])
@pytest.mark.parametrize("how", ["plain", "lookahead", "two passes", "accumulate"])
def test_a_read_beside_training_gives_the_rows_between_two_steps(how: str, tables: list[hotrows.Table]) -> None:
    data = batches(40)
    everything = torch.arange(100).unsqueeze(1).expand(100, 2).contiguous()

    def step(bags: hotrows.EmbeddingBagCollection, ids: Tensor) -> None:
        if how == "accumulate":
            with bags.accumulate():
                for part in ids.chunk(2):
                    (read_all(bags, part) - 1.0).square().sum().backward()
        elif how == "two passes":
            first, second = (read_all(bags, part) for part in ids.chunk(2))
            ((first - 1.0).square().sum() + second.sum()).backward()
        else:
            (read_all(bags, ids) - 1.0).square().sum().backward()

    plain, expected = make("100%", tables), []
    for ids in [None, *data]:
        if ids is not None:
            step(plain, ids)
        with torch.no_grad():
            expected.append(read_all(plain, everything))
    bags, ended, found = make(tables=tables), threading.Event(), list[Tensor]()

    def train() -> None:
        try:
            looks_ahead = how == "lookahead"
            for ids in hotrows.lookahead(data, bags, depth=2, ids=lambda ids: ids) if looks_ahead else data:
                step(bags, ids)
        finally:
            ended.set()

    def read() -> None:
        while not ended.is_set():
            with torch.no_grad():
                found.append(read_all(bags, everything))

    run_all([train, read, read])
    assert found
    steps = [next((step for step, rows in enumerate(expected) if torch.equal(rows, each)), None) for each in found]
    assert None not in steps, "a read gave rows of no moment between two steps"
    assert all(torch.equal(bags.weight(t.name), plain.weight(t.name)) for t in tables)


def test_two_threads_that_train_get_an_error() -> None:
    bags = make()
    out = bags(batches(1)[0])
    with pytest.raises(RuntimeError, match="two threads train these bags at the same time"):
        run_all([lambda: bags(batches(1)[0]).sum().backward()])
    out.sum().backward()
    run_all([lambda: bags(batches(1)[0]).sum().backward()])  # one after the other is fine


IN_A_CHILD = {
    "read": "with torch.no_grad(): bags(ids)",
    "forward": "bags(ids)",
    "backward": "loss.backward()",
    "next": "next(it)",
    "stats": "bags.stats()",
    "flush": "bags.flush()",
    "weight": "bags.state_dict()",
    "state": "optimizer.state_dict()",
    "pin": "bags.pin([1])",
    "loop": "next(iter(hotrows.lookahead([ids], bags, ids=lambda ids: ids)))",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.parametrize("where", ["outside", "in a loop"])
def test_a_forked_child_says_what_to_do(where: str) -> None:
    """In the middle of an iteration, whose rows are in the cache already, as between two batches."""
    program = f"""
import os, sys, torch, hotrows
optimizer = hotrows.optim.SGD(lr=0.1)
bags = hotrows.EmbeddingBag(50, 4, cache=5, optimizer=optimizer)
with torch.no_grad():
    bags(torch.tensor([[1], [2]]))
it = iter(hotrows.lookahead([torch.tensor([[i], [i + 1]]) for i in range(20)], bags, ids=lambda ids: ids))
ids = next(it) if {where == "in a loop"} else torch.tensor([[3], [4]])
loss = bags(ids).sum()
child = os.fork()
if child == 0:
    for number, code in enumerate({list(IN_A_CHILD.values())}):
        try:
            exec(code)
        except RuntimeError as error:
            if "spawn" not in str(error):
                raise
        else:
            os._exit(10 + number)
    del it, loss
    sys.exit(7)
loss.backward()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "7", "")


def test_a_copy_for_another_process_leaves_the_rows_where_they_are() -> None:
    bags = make()
    for ids in batches(4):
        bags(ids).sum().backward()
    before = {t.name: bags.weight(t.name) for t in TABLES}
    address = bags.caches[0].store.records.data_ptr()
    received = multiprocessing.reduction.ForkingPickler.loads(multiprocessing.reduction.ForkingPickler.dumps(bags))
    other = copy.deepcopy(bags)
    for module in (received, other):
        module(batches(1)[0]).sum().backward()
    assert bags.caches[0].store.records.data_ptr() == address
    assert all(torch.equal(bags.weight(name), rows) for name, rows in before.items())


def _train_elsewhere(bags: hotrows.EmbeddingBagCollection, answers: Any) -> None:
    answers.put(bags.weight("a").sum().item())
    bags(batches(1)[0]).sum().backward()
    answers.put(bags.weight("a").sum().item())


def test_a_spawned_process_gets_a_copy() -> None:
    bags = make()
    bags(batches(1)[0]).sum().backward()
    before = bags.weight("a")
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_train_elsewhere, args=(bags, answers))
    process.start()
    assert answers.get(timeout=120) == before.sum().item()
    assert answers.get(timeout=120) != before.sum().item()
    process.join(timeout=120)
    assert process.exitcode == 0
    assert torch.equal(bags.weight("a"), before)


EXITS = {
    "break": ("for ids in it:\n    step(ids)\n    break", 0),
    "next": ("next(it)", 0),
    "one step": ("step(next(it))", 0),
    "exception": ("for ids in it:\n    step(ids)\n    raise KeyError('the user')", 1),
    "sys.exit": ("for ids in it:\n    step(ids)\n    raise SystemExit(3)", 3),
    "in a function": ("def f():\n    for ids in it:\n        step(ids)\n        return\nf()", 0),
    "two loops": ("step(next(it)); other = loop(); step(next(other))", 0),
    "a graph is open": ("out = bags(next(it))", 0),
    "interrupt": ("for ids in it:\n    step(ids)\n    signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    "all": ("for ids in it:\n    step(ids)", 0),
}


@pytest.mark.parametrize("depth", [0, 3, 6])
@pytest.mark.parametrize("name", sorted(EXITS))
def test_a_program_that_ends_within_a_loop_ends_as_python_does(name: str, depth: int) -> None:
    code, expected = EXITS[name]
    program = f"""
import signal, torch, hotrows
signal.signal(signal.SIGINT, signal.default_int_handler)
bags = hotrows.EmbeddingBag(20_000, 16, mode="sum", cache=6_000, optimizer=hotrows.optim.SGD(lr=0.1))
data = [torch.randint(0, 20_000, (1000, 1)) for _ in range(12)]
loop = lambda: hotrows.lookahead(data, bags, depth={depth}, ids=lambda ids: ids)
step = lambda ids: bags(ids).sum().backward()
it = loop()
{code}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expected, done.stderr
    assert "Error" not in done.stderr or name in ("exception", "interrupt")
    assert "torch" not in done.stderr.lower().replace("import torch", "")
