"""Compiles every kernel for a GPU that need not be there, by calling the launchers with kernels that do not run.

Run as a script, by test_compiles_for_gpu.py: the tests around it run kernels in Triton's interpreter, which is chosen
when a kernel is defined, and knows less of what a compiler refuses.
"""

import re
import sys

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from hotrows.cache.fused import FusedPlanner, Places, Seats
from hotrows.cache.id_columns import IdColumns
from hotrows.cache.indexes import make_index
from hotrows.cache.planner import Counts, Planner
from hotrows.cache.policies import Lookahead, make_policy
from hotrows.cache.resident import ResidentPlanner
from hotrows.cache.slots import Slots
from hotrows.ops.add_up import kernel as add_up
from hotrows.ops.click_loss import kernel as click_loss
from hotrows.ops.deliver import kernel as deliver
from hotrows.ops.dense_step import kernel as dense_step
from hotrows.ops.distinct import kernel as distinct
from hotrows.ops.interact import kernel as interact
from hotrows.ops.linear import kernel as linear
from hotrows.ops.linear.kernel_resize import resized
from hotrows.ops.linear.kernel_sums import make_parts, mask_and_sum
from hotrows.ops.plan import kernel as plan
from hotrows.ops.pool import kernel as pool
from hotrows.ops.renumber import kernel as renumber
from hotrows.ops.row_table import kernel as row_table
from hotrows.ops.row_update import kernel as row_update
from hotrows.ops.select import kernel as select
from hotrows.ops.swap import Moves
from hotrows.ops.swap import kernel as swap
from hotrows.ops.update_rows import kernel as update_rows
from hotrows.ops.wide_input import kernel as wide_input

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
    row_table.build(torch.zeros(200, dtype=torch.int64), ints(200), ints(BATCH + 1), rows)
    for words in (DIM, 3 * DIM):
        for has_clusters in (False, True):
            swap._has_clusters = lambda _cache, has=has_clusters: has
            swap.swap(torch.zeros(50, words), torch.zeros(90, words), Moves(ints(BATCH), rows, rows, num))
    keys = torch.full((101,), -1)
    row_table.find(keys, rows, num)
    row_table.insert(keys, rows, num)
    renumber.renumber(rows, num, ints(90))
    distinct.distinct(rows)
    deliver.deliver(torch.zeros(3), torch.zeros(1, dtype=torch.int64))
    for most in (9, 1 << 18):  # small and large blocks
        select.select(ints(9000), ints(9000), torch.zeros(9000, dtype=torch.bool), 0, num, most)


def planning() -> None:
    sizes = torch.tensor([50, 400, 3])
    part = IdColumns(None, sizes.cumsum(0) - sizes, sizes)
    some = IdColumns(torch.tensor([2, 0]), sizes[:2], sizes[:2])
    shared = IdColumns(None, torch.tensor([0, 50, 0]), sizes[[0, 1, 0]])
    with_counts = Lookahead(torch.ones(453))
    for columns, policy, index in (
        (part, make_policy("lookahead"), "hash"), (some, with_counts, "direct"), (shared, make_policy("lfu"), "hash"),
    ):  # fmt: skip
        slots = Slots(120, torch.device("cpu"))
        for parts in (1, 2, 4):
            plan_with(Planner(slots, make_index(index, 453, slots), policy), columns, 453, parts=parts)
    plan_with(ResidentPlanner(2**40), part, 2**40)  # rows of 64 bits
    for num_samples in (1024, 2048, distinct.MOST_SAMPLES, distinct.MOST_SAMPLES + 1):
        plan_with(ResidentPlanner(800), some, 800, num_samples)


def plan_with(
    planner: Planner | ResidentPlanner, columns: IdColumns, num_rows: int, num_samples: int = BATCH, parts: int = 1
) -> None:
    device, num_lookups = torch.device("cpu"), num_samples * columns.first_row.numel()
    places = Places(3, num_lookups, device, ints(3 * parts, 2), parts, ints(3, 2))
    seats = Seats(2 * parts, num_lookups, device, ints(2 * parts, len(Counts._fields)))
    fused = FusedPlanner(planner, columns, num_samples, num_rows, places, seats, ints(4, plan.NUM_NUMBERS))
    if isinstance(planner, Planner) and isinstance(planner.policy, Lookahead):
        planner.policy.upcoming.expect(0, fused.num_lookups)
    ids = torch.zeros(parts * num_samples, FEATURES, dtype=torch.int64)
    for announces, plans in ((True, False), (False, True), (True, True)):
        fused.turn(ids, announces, plans)


def rows_in_training() -> None:
    num_lookups = 20_000  # so many that a row may have too many of them for one program
    slots, num, order, starts = ints(num_lookups), ints(1), ints(num_lookups), ints(num_lookups + 1)
    offsets, weights = torch.arange(BATCH + 1).int(), torch.ones(num_lookups)
    for (rule, (hyper, parts)), dim in zip(RULES.items(), (97, DIM), strict=True):
        grad = torch.zeros(num_lookups, dim)
        cache = torch.zeros(50, -(-parts * dim // 4) * 4)
        update_rows.update_rows(rule, cache, slots, num, grad, order, starts, None, None, None, dim, hyper, None)
        row_update.row_update(rule, cache, slots, grad, num, dim, hyper)
        pool.pool(torch.zeros(50, dim), slots, None, None, dim, "sum")
    row_update._any_rule("sgd", torch.zeros(50, DIM), slots, grad, num, DIM, (0.1, 0.0))  # as for a user's own rule
    add_up.add_up(grad, order, starts, num, None, None, None)
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
        mask_and_sum(grad, out, 64, 64, parts, 0, turn=True, weight=weight)
    for dtype in (torch.float32, torch.bfloat16):
        embedded = torch.zeros(BATCH, FEATURES, DIM, requires_grad=True)
        summary = torch.zeros(BATCH, DIM, requires_grad=True)
        interact.interact(summary, embedded, dtype).float().sum().backward()
        wide = torch.zeros(BATCH, FEATURES, 97, requires_grad=True)
        weight, bias = torch.zeros(1, 13, requires_grad=True), torch.zeros(1, requires_grad=True)
        deep, sums = wide_input.wide_input(x, wide, weight, bias, dtype, torch.float32)
        (deep.float().sum() + sums.sum()).backward()
        logits = torch.zeros(BATCH, dtype=dtype, requires_grad=True)
        click_loss.click_loss(logits, torch.zeros(BATCH)).backward()
    click_loss.click_loss(torch.zeros(100_000), torch.zeros(100_000))


def dense_steps() -> None:
    params = [torch.zeros(size) for size in (1, 64, 4096)] * 11
    lr, steps = torch.zeros(()), [torch.zeros(()) for _ in params]
    for weight_decay in (0.0, 0.1):
        for momentum, is_first_step in ((0.0, False), (0.9, True), (0.9, False)):
            nesterov = maximize = weight_decay != 0
            dense_step.sgd(params, params, params, lr, weight_decay, momentum, 0.1, nesterov, maximize, is_first_step)
        for decoupled in (False, True):
            dense_step.adam(
                params, params, params, params, steps, lr, 0.9, 0.999, weight_decay, 1e-8, decoupled, decoupled
            )  # fmt: skip


if __name__ == "__main__":
    compile_only()
    for work in (rows_and_moves, planning, rows_in_training, dense_part, dense_steps):
        work()
    defined = {
        f"{function.__module__}.{function.__name__}": function
        for name, module in sys.modules.items()
        if re.fullmatch(r"hotrows\.ops\..*\.kernel(_\w+)?", name)
        for function in vars(module).values()
        if isinstance(function, JITFunction)
    }
    # what others call is compiled with them
    parts = {
        name
        for name, function in defined.items()
        if any(re.search(rf"\b{function.__name__}\(", other.src) for other in defined.values() if other is not function)
    }
    missing = sorted(set(defined) - compiled - parts)
    print("\n".join(sorted(compiled)))
    if missing:
        sys.exit(f"never launched, so never compiled: {', '.join(missing)}")
