"""The worked example of docs/architecture.md: its numbers are those of the real planner."""

import importlib
import re
from pathlib import Path

import pytest
import torch

from hotrows.cache.indexes import make_index
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.protocol import Counts, Placement, Plan
from hotrows.cache.policies import make_policy
from hotrows.cache.slots import Slots
from hotrows.ops.unique import unique_rows

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
NUM_SLOTS, NUM_ROWS = 4, 10
BATCHES = {"A": [7, 2, 7], "B": [7, 9], "C": [9, 4, 5]}
# What is planned, and the oldest batch in flight at that time.
STEPS = [("A", None), ("B", "A"), ("C", "A"), ("C", "B")]


def example() -> str:
    """The table of the example: the state behind every step."""
    slots = Slots(NUM_SLOTS, torch.device("cpu"))
    planner = EagerPlanner(slots, make_index("hash", NUM_ROWS, slots), make_policy("lookahead"))
    uniques = [unique_rows(torch.tensor(rows)) for rows in BATCHES.values()]
    numbers = {name: number for number, name in enumerate(BATCHES)}
    for number, unique in enumerate(uniques):
        planner.announce(unique, number)
    lines = [
        "| step | index: row → slot | slots: row, last plan | slot of each lookup | moves | readback |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| all announced | {index_of(planner)} | {slots_of(planner)} | | | |",
    ]
    plan_of: dict[str, int] = {}
    for name, oldest in STEPS:
        in_flight = None if oldest is None else plan_of[oldest]
        (plan,) = planner.plan(uniques[numbers[name]], Placement.ATOMIC, in_flight, numbers[name])
        counts = Counts(*plan.counts.tolist())
        planner.resolve(plan, counts, Placement.ATOMIC)
        plan_of[name] = plan.plan_number
        found = ", ".join(map(str, plan.slots.tolist())) if counts.fits else "none"
        lines.append(
            f"| plan {plan.plan_number}: {name} | {index_of(planner)} | {slots_of(planner)} | {found} "
            f"| {moves_of(plan)} | {readback_of(counts)} |"
        )
    return "\n".join(lines)


def index_of(planner: EagerPlanner) -> str:
    rows = torch.arange(NUM_ROWS)
    found = planner.index.find(rows, torch.tensor([NUM_ROWS], dtype=torch.int32)).tolist()
    return ", ".join(f"{row} → {slot}" for row, slot in enumerate(found) if slot >= 0) or "empty"


def slots_of(planner: EagerPlanner) -> str:
    rows, plans = planner.slots.row[:NUM_SLOTS].tolist(), planner.slots.last_used[:NUM_SLOTS].tolist()
    return " · ".join("free" if row < 0 else f"{row}, {plan}" for row, plan in zip(rows, plans, strict=True))


def moves_of(plan: Plan) -> str:
    moves = zip(plan.move_slots.tolist(), plan.move_out.tolist(), plan.move_in.tolist(), strict=True)
    texts = [f"slot {slot}: {f'{out} out, ' if out >= 0 else ''}{into} in" for slot, out, into in moves if slot >= 0]
    return "; ".join(texts) or "none"


def readback_of(counts: Counts) -> str:
    if not counts.fits:
        return f"{counts.hits} hits, {counts.misses} misses, **does not fit**"
    return f"{counts.hits} hits, {counts.misses} misses, {counts.placed} placed, {counts.evictions} evicted"


def test_the_numbers_of_the_example_are_the_planners() -> None:
    found = re.search(r"<!-- example: begin -->\n(.*?)\n<!-- example: end -->", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert found[1].strip() == example(), f"the page must have\n{example()}"


def test_the_batches_of_the_example_are_those_of_the_page() -> None:
    text = PAGE.read_text()
    for name, rows in BATCHES.items():
        assert f"{name} = {rows}" in text


def test_the_mutations_of_the_page_are_those_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PAGE.parents[1] / "tools")
    script = importlib.import_module("mutations")
    listed = PAGE.read_text().split("| what is taken out | where |")[1].split("\n\n")[0]
    found = re.findall(r"^\| (.+?) \| `(\S+)` \| (.+) \|$", listed, re.MULTILINE)
    expected = [
        (each.rule, each.path, ", ".join(f"`{test}`" for test in each.tests.split())) for each in script.MUTATIONS
    ]
    rows = "\n".join(f"| {rule} | `{path}` | {tests} |" for rule, path, tests in expected)
    assert found == expected, f"the page must have\n{rows}"
