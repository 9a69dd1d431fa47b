"""Private calls: they are in one file, and without them the result is the same."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

import hotrows
from hotrows.runtime import cuda_private

PACKAGE = Path(hotrows.__file__).parent
HOME = "runtime/cuda_private.py"
ALLOWED = {  # Python code of PyTorch that has no public name
    ("graphs/batch_pytree.py", "torch.utils._pytree"),
    ("models/mlp.py", "torch.nn.modules.module._has_any_global_hook"),
}
PRIVATE_METHODS = {"_execution_engine", "_sequence_nr", "_set_sequence_nr", "__torch_dispatch__", "__torch_function__"}


def private_names(source: str) -> Iterator[str]:
    """The private names of torch, and the direct calls of libraries, in Python code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr] if node.attr in PRIVATE_METHODS else [_dotted(node)]
        elif isinstance(node, ast.FunctionDef):
            names = [node.name] if node.name in PRIVATE_METHODS else []
        else:
            names = []
        for name in names:
            parts = name.split(".")
            is_private = parts[0] == "torch" and any(part.startswith("_") and part != "__version__" for part in parts)
            if is_private or parts[0] in ("ctypes", "_ctypes", "cffi") or name in PRIVATE_METHODS:
                yield name


def _dotted(node: ast.expr) -> str:
    """torch.a.b for an expression of that form, '' for others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def test_private_calls_are_in_one_file():
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        for name in private_names(path.read_text(encoding="utf-8"))
    }
    assert {name.split(".")[0] for file, name in found if file == HOME} >= {"torch", "ctypes"}
    assert {each for each in found if each[0] != HOME} == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._C._cuda_getDevice()",
        "import torch\ntorch._foreach_copy_([], [])",
        "import ctypes",
        "from ctypes import CDLL",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "import torch\ntorch.ops.aten._fused_sgd_.tensor_lr",
        "import torch\ntorch.autograd.Variable._execution_engine.queue_callback(print)",
        "def f(node): return node._sequence_nr()",
        "class Mode:\n    def __torch_dispatch__(self): ...",
    ],
)
def test_private_calls_are_found(source):
    assert list(private_names(source))


def test_public_calls_are_not_found():
    assert not list(
        private_names("import torch\nprint(torch.__version__, torch.cuda.Stream, x._version, self._torch._c)")
    )


PROGRAM = """
import hashlib, torch, hotrows
torch.manual_seed(0)
bags = hotrows.EmbeddingBagCollection([hotrows.Table("a", 500)], 4, cache=60, optimizer=hotrows.optim.Adam(lr=0.1))
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
def train(ids):
    loss = layer(bags(ids)[:, 0]).square().sum() + bags(ids.flip(0)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
step = hotrows.graphed(train, bags)
for ids in hotrows.lookahead([torch.randint(500, (12, 1)) for _ in range(8)], bags, depth=2, ids=lambda batch: batch):
    step(ids)
for ids in torch.randint(500, (3, 12, 1)):
    with bags.accumulate():
        for part in ids.split(4):
            bags(part).square().sum().backward()
from hotrows.runtime import cuda_private
print(int(cuda_private.SAFE))
print(hashlib.sha256(bags.weight("a").numpy().tobytes() + layer.weight.detach().numpy().tobytes()).hexdigest())
"""


def test_training_without_private_calls_gives_the_same_bits():
    outputs = []
    for safe in ("0", "1"):
        environment = {**os.environ, "HOTROWS_SAFE": safe}
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(run.stdout.split())
    (plain, ours), (safe, theirs) = outputs
    assert (plain, safe) == ("0", "1")
    assert ours == theirs


@pytest.fixture(params=[False, True])
def safe(request, monkeypatch) -> bool:
    monkeypatch.setattr(cuda_private, "SAFE", request.param)
    return request.param


def test_copies_and_products(safe):
    targets, sources = [torch.zeros(3), torch.zeros(2, 2)], [torch.ones(3), torch.rand(2, 2)]
    cuda_private.copy_all(targets, sources)
    assert all(map(torch.equal, targets, sources))
    bias, left, right = torch.randn(4), torch.randn(5, 3), torch.randn(3, 4)
    torch.testing.assert_close(cuda_private.addmm_relu(bias, left, right), torch.relu(bias + left @ right))


def test_nodes_that_are_run_first(safe):
    order = []

    def noting(name):
        class Note(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                order.append(name)
                return grad

        return Note.apply

    leaf = torch.ones(2, requires_grad=True)
    first = cuda_private.run_first_in_backward(noting("made first")(leaf))
    second = noting("made last")(leaf)
    (first + second).sum().backward()
    assert order == (["made last", "made first"] if safe else ["made first", "made last"])
    assert leaf.grad.eq(2).all()


def test_calls_after_the_backward_pass(safe):
    events = []

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            events.append(
                (cuda_private.backward_pass_number(), cuda_private.call_after_backward(lambda: events.append("end")))
            )
            return grad

    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(lambda grad: events.append("leaf"))
    Call.apply(leaf).sum().backward()
    (number, is_called), *after = events
    if safe:
        assert (number, is_called, after) == (None, False, ["leaf"])
    else:
        assert number >= 0 > cuda_private.backward_pass_number()
        assert (is_called, after) == (True, ["leaf", "end"])


def test_fused_steps_are_replaced_inside_only(safe):
    taken = []

    def sgd(params, grads, buffers, *, lr, **numbers):
        taken.append(float(lr))
        return len(taken) == 1

    param = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([param], lr=torch.tensor(0.5), fused=True)
    param.grad = torch.ones(3)
    with cuda_private.replace_fused_steps(sgd=sgd):
        optimizer.step()
        assert param.eq(0.5 if safe else 1.0).all(), "the replacement says that it has taken this step"
        optimizer.step()
        assert param.eq(0.0 if safe else 0.5).all(), "and leaves this one to PyTorch"
    assert _get_current_dispatch_mode() is None
    optimizer.step()
    assert taken == ([] if safe else [0.5, 0.5])


def test_what_needs_cuda_is_absent_when_switched_off(monkeypatch):
    monkeypatch.setattr(cuda_private, "SAFE", True)
    assert cuda_private.current_stream_key(torch.device("cuda", 0)) is None
    assert cuda_private.switch_stream(None) is None
    assert cuda_private.limit_cublas(4) is None
    assert cuda_private.leave_multiprocessors_free(4) is None
    assert cuda_private.host_to_device_copy() is None
    assert cuda_private.graph_nodes() is None
    cuda_private.end_allocation_to_pool(torch.device("cuda", 0), (0, 0))
