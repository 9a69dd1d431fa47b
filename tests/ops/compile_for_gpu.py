"""Compiles every kernel for a GPU that need not be there. It calls the launchers, with kernels that are not run.

test_compiles_for_gpu.py runs this as a script, because the other tests run kernels in Triton's interpreter, and whether
a kernel is interpreted is fixed when it is defined. The interpreter accepts much that the compiler refuses.
"""

import re
import sys

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from hotrows.cache.indexes import make_index
from hotrows.cache.planning.buffers import PlanBuffers, RequestBuffers
from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.identity_planner import IdentityPlanner
from hotrows.cache.planning.kernel_planner import KernelPlanner
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.protocol import Counts, Planner
from hotrows.cache.policies import Lookahead, make_policy
from hotrows.cache.slots import Slots
from hotrows.dense.bce_loss import kernel as bce_loss
from hotrows.dense.dense_optimizer import kernel as dense_optimizer
from hotrows.dense.interact import kernel as interact
from hotrows.dense.linear import kernel as linear
from hotrows.dense.linear.kernel_resize import resized
from hotrows.dense.linear.kernel_sums import make_parts, mask_and_sum
from hotrows.dense.wide_deep_input import kernel as wide_deep_input
from hotrows.ops.backward_update import kernel as backward_update
from hotrows.ops.hash_table import kernel as hash_table
from hotrows.ops.plan import kernel as plan
from hotrows.ops.pool import kernel as pool
from hotrows.ops.remap import kernel as remap
from hotrows.ops.row_optimizer import kernel as row_optimizer
from hotrows.ops.segment_sum import kernel as segment_sum
from hotrows.ops.select_victims import kernel as select_victims
from hotrows.ops.swap import Moves
from hotrows.ops.swap import kernel as swap
from hotrows.ops.unique import kernel as unique
from hotrows.ops.write_to_address import kernel as write_to_address

HOPPER = GPUTarget("cuda", 90, 32)
BATCH, FEATURES, DIM = 64, 3, 128
RULES = {"row_wise_adagrad": ((0.05, 1e-8), 2), "adam": ((0.001, 0.9, 0.999, 1e-8), 3)}
compiled: set[str] = set()


class AbsentGPU:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compile_only() -> None:
    run = JITFunction.run

    def compiling(self, *arguments, grid, warmup, **options):
        compiled.add(f"{self.__module__}.{self.__name__}")
        return run(self, *arguments, grid=grid, warmup=True, **options)

    JITFunction.run = compiling
    driver.set_active(AbsentGPU())


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def rows_and_moves() -> None:
    num = ints(1)
    rows = torch.arange(BATCH)
    hash_table.build(torch.zeros(200, dtype=torch.int64), ints(200), ints(BATCH + 1), rows)
    for words in (DIM, 3 * DIM):
        for has_clusters in (False, True):
            swap._has_clusters = lambda _cache, has=has_clusters: has
            swap.swap(torch.zeros(50, words), torch.zeros(90, words), Moves(ints(BATCH), rows, rows, num))
    keys = torch.full((101,), -1)
    hash_table.find(keys, rows, num)
    hash_table.insert(keys, rows, num)
    remap.remap(rows, num, ints(90))
    unique.unique_rows(rows)
    write_to_address.write_to_address(torch.zeros(3), torch.zeros(1, dtype=torch.int64))
    for length in (9, 1 << 18):  # small and large blocks
        select_victims.select_victims(ints(9000), ints(9000), torch.zeros(9000, dtype=torch.bool), 0, num, length)


def planning() -> None:
    sizes = torch.tensor([50, 400, 3])
    all_columns = IdColumns(None, sizes.cumsum(0) - sizes, sizes)
    some_columns = IdColumns(torch.tensor([2, 0]), sizes[:2], sizes[:2])
    same_table = IdColumns(None, torch.tensor([0, 50, 0]), sizes[[0, 1, 0]])
    with_counts = Lookahead(torch.ones(453))
    for columns, policy, index in (
        (all_columns, make_policy("lookahead"), "hash"), (some_columns, with_counts, "direct"),
        (same_table, make_policy("lfu"), "hash"), (all_columns, make_policy("lookahead"), "set-associative"),
        (some_columns, make_policy("lru"), "set-associative"), (all_columns, make_policy("lfu"), "set-associative"),
    ):  # fmt: skip
        slots = Slots(128, torch.device("cpu"))
        for parts in (1, 2, 3, 4):
            plan_with(EagerPlanner(slots, make_index(index, 453, slots), policy), columns, 453, parts=parts)
    plan_with(IdentityPlanner(2**40), all_columns, 2**40)  # rows of 64 bits
    for num_samples in (1024, 2048, unique.MAX_SAMPLES, unique.MAX_SAMPLES + 1):
        plan_with(IdentityPlanner(800), some_columns, 800, num_samples)


def plan_with(planner: Planner, columns: IdColumns, num_rows: int, num_samples: int = BATCH, parts: int = 1) -> None:
    device, num_lookups = torch.device("cpu"), num_samples * columns.first_row.numel()
    request_buffers = RequestBuffers(3, num_lookups, device, ints(3 * parts, 2), parts, ints(3, 2))
    plan_buffers = PlanBuffers(2 * parts, num_lookups, device, ints(2 * parts, len(Counts._fields)))
    host_inputs = ints(4, plan.NUM_INPUTS)
    spec = planner.kernel_spec()
    assert spec is not None
    kernels = KernelPlanner(spec, columns, num_samples, num_rows, request_buffers, plan_buffers, host_inputs)
    if spec.cache is not None and spec.cache.policy.next_use is not None:
        spec.cache.policy.next_use.expect(0, kernels.num_lookups)
    ids = torch.zeros(parts * num_samples, FEATURES, dtype=torch.int64)
    for announces, plans in ((True, False), (False, True), (True, True)):
        kernels.run(ids, announces, plans)


def rows_in_training() -> None:
    num_lookups = 20_000  # so many that a row may have too many of them for one program
    slots, num, order, starts = ints(num_lookups), ints(1), ints(num_lookups), ints(num_lookups + 1)
    offsets, weights = torch.arange(BATCH + 1).int(), torch.ones(num_lookups)
    for (rule, (hyper, parts)), dim in zip(RULES.items(), (97, DIM), strict=True):
        grad = torch.zeros(num_lookups, dim)
        cache = torch.zeros(50, -(-parts * dim // 4) * 4)
        backward_update.backward_update(
            rule, cache, slots, num, grad, order, starts, None, None, None, dim, hyper, None
        )  # fmt: skip
        row_optimizer.row_optimizer(rule, cache, slots, grad, num, dim, hyper)
        pool.pool(torch.zeros(50, dim), slots, None, None, dim, "sum")
    # A user's own rule is computed like this one, without a kernel of its own.
    row_optimizer._rule_without_kernel("sgd", torch.zeros(50, DIM), slots, grad, num, DIM, (0.1, 0.0))
    segment_sum.segment_sum(grad, order, starts, num, None, None, None)
    for mode in ("sum", "max"):
        pool.pool(torch.zeros(50, DIM), slots, offsets, weights if mode == "sum" else None, DIM, mode)


def dense_part() -> None:
    x = torch.zeros(BATCH, 13, requires_grad=True)
    parameters = [torch.zeros(shape, requires_grad=True) for shape in ((64, 13), (64,), (1, 64), (1,))]
    linear.layers(x, parameters, [True, False], torch.float32).sum().backward()
    resized(x.detach(), BATCH, 16, torch.bfloat16)
    parts = make_parts(x, BATCH, [64])
    for dtype in (torch.float32, torch.bfloat16):
        grad, out, weight = (torch.zeros(size, 64, dtype=dtype) for size in (BATCH, BATCH, 64))
        mask_and_sum(grad, out, 64, 64, parts, 0, transpose=True, weight=weight)
    for dtype in (torch.float32, torch.bfloat16):
        embedded = torch.zeros(BATCH, FEATURES, DIM, requires_grad=True)
        summary = torch.zeros(BATCH, DIM, requires_grad=True)
        interact.interact(summary, embedded, dtype).float().sum().backward()
        wide = torch.zeros(BATCH, FEATURES, 97, requires_grad=True)
        weight, bias = torch.zeros(1, 13, requires_grad=True), torch.zeros(1, requires_grad=True)
        deep, sums = wide_deep_input.wide_deep_input(x, wide, weight, bias, dtype, torch.float32)
        (deep.float().sum() + sums.sum()).backward()
        logits = torch.zeros(BATCH, dtype=dtype, requires_grad=True)
        bce_loss.bce_loss(logits, torch.zeros(BATCH)).backward()
    bce_loss.bce_loss(torch.zeros(100_000), torch.zeros(100_000))


def optimizer_override() -> None:
    params = [torch.zeros(size) for size in (1, 64, 4096)] * 11
    lr, steps = torch.zeros(()), [torch.zeros(()) for _ in params]
    for weight_decay in (0.0, 0.1):
        for momentum, is_first_step in ((0.0, False), (0.9, True), (0.9, False)):
            nesterov = maximize = weight_decay != 0
            dense_optimizer.sgd(
                params, params, params, lr, weight_decay, momentum, 0.1, nesterov, maximize, is_first_step
            )  # fmt: skip
        for decoupled in (False, True):
            dense_optimizer.adam(
                params, params, params, params, steps, lr, 0.9, 0.999, weight_decay, 1e-8, decoupled, decoupled
            )  # fmt: skip


if __name__ == "__main__":
    compile_only()
    for work in (rows_and_moves, planning, rows_in_training, dense_part, optimizer_override):
        work()
    defined = {
        f"{function.__module__}.{function.__name__}": function
        for name, module in sys.modules.items()
        if re.fullmatch(r"hotrows\.(ops|dense)\..*\.kernel(_\w+)?", name)
        for function in vars(module).values()
        if isinstance(function, JITFunction)
    }
    # A function that others call is compiled with them.
    called = {
        name
        for name, function in defined.items()
        if any(re.search(rf"\b{function.__name__}\(", other.src) for other in defined.values() if other is not function)
    }
    missing = sorted(set(defined) - compiled - called)
    print("\n".join(sorted(compiled)))
    if missing:
        sys.exit(f"never launched, so never compiled: {', '.join(missing)}")
