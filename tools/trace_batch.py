"""Print the calls of one batch: every function of hotrows that one iteration of a training loop runs, in order.

    python tools/trace_batch.py [--planning-graph] [--tree]

A loop on the CPU runs until it is in its steady state. Then one iteration is traced: it announces one batch, plans
another and trains a third, so it has all the calls that a batch sees on its way. By default batches are planned by the
eager planner, as on a machine without a GPU. With --planning-graph they are planned by the kernels that a CUDA graph
replays on a GPU, here in Triton's interpreter. docs/architecture.md lists the calls that matter.
"""

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "hotrows"
NUM_BATCHES, TRACED = 10, 4  # the traced batch is behind the beginning of the loop and before its end
DEPTH, WINDOW, BATCH_SIZE = 1, 5, 8
ROWS, SLOTS = 1000, 200


class Call(NamedTuple):
    """A function's first call in the traced iteration."""

    file: str  # under src/hotrows
    function: str
    depth: int  # how many functions of hotrows had called each other by then

    @property
    def name(self) -> tuple[str, str]:
        return self.file, self.function


class Tracer:
    """Notes each function of the package when it is first called, while `is_on`.

    Functions within functions are part of the outermost one.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.calls: dict[tuple[str, str], Call] = {}
        self.num_calls = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.is_on or event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(f"{PACKAGE}/") or code.co_name.startswith("<"):
            return
        self.num_calls += 1
        file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
        call = Call(file, code.co_qualname.split(".<locals>")[0], _depth(frame.f_back))
        self.calls.setdefault(call.name, call)


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        depth += frame.f_code.co_filename.startswith(f"{PACKAGE}/") and not frame.f_code.co_name.startswith("<")
        frame = frame.f_back
    return depth


def trace(planning_graph: bool) -> Tracer:
    """Train a few batches on the CPU, and trace one iteration."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so it must be set before hotrows is imported
    tracer = Tracer()
    threading.setprofile(tracer)  # for the thread that moves rows
    sys.setprofile(tracer)
    try:
        _train(tracer, planning_graph)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return tracer


def _train(tracer: Tracer, planning_graph: bool) -> None:
    import torch

    import hotrows

    random = torch.Generator().manual_seed(0)
    batches = [torch.randint(ROWS, (BATCH_SIZE, 2), generator=random) for _ in range(NUM_BATCHES)]
    bags = hotrows.EmbeddingBagCollection(
        [hotrows.Table("first", ROWS), hotrows.Table("second", ROWS)], dim=4, cache=SLOTS,
        optimizer=hotrows.optim.SGD(lr=0.1), device="cpu",
    )  # fmt: skip
    for scheduler in bags.schedulers:
        scheduler.uses_graph = planning_graph
        scheduler.coalesce = 1  # so that every iteration announces a batch and plans another
    for number, ids in enumerate(hotrows.lookahead(batches, bags, DEPTH, WINDOW, ids=lambda batch: batch)):
        bags(ids).sum().backward()
        tracer.is_on = number == TRACED - 1
        if number == TRACED:
            return


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--planning-graph",
        action="store_true",
        help="plan by the kernels of the planning graph, in Triton's interpreter",
    )
    parser.add_argument("--tree", action="store_true", help="indent each function below the one that called it")
    given = parser.parse_args(arguments)
    tracer = trace(given.planning_graph)
    calls = list(tracer.calls.values())
    width = max(len(call.file) for call in calls)
    for number, call in enumerate(calls, 1):
        indent = "  " * (call.depth if given.tree else 0)
        print(f"{number:4}  {call.file:{width}}  {indent}{call.function}")
    files = {call.file for call in calls}
    print(f"{tracer.num_calls} calls of {len(calls)} functions in {len(files)} files")


if __name__ == "__main__":
    main()
