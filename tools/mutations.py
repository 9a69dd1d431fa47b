"""Take the rules that make training exact out of the code, one at a time, and run the test that must then fail.

docs/architecture.md gives the argument for exactness as rules. For each rule this script copies the source, changes the
lines that keep the rule, and runs the named tests on the copy. It prints one line per rule, and its exit code is 1 if a
rule can go without a failing test, or if the tests fail without any change.

    python tools/mutations.py
    python tools/mutations.py --only overflow
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600  # seconds for the tests of one rule


@dataclass(frozen=True)
class Mutation:
    """One rule taken out of the code."""

    rule: str
    path: str  # below src/hotrows
    before: str  # occurs once in the file
    after: str
    tests: str  # what to run, with pytest's own selection


MUTATIONS = (
    Mutation(
        "slots in flight are not evicted", "loop/scheduler.py",
        "planner, oldest = self.cache.planner, self.in_flight.oldest",
        "planner, oldest = self.cache.planner, None",
        "tests/test_exactness.py::test_equal_to_uncached",
    ),
    Mutation(
        "slots of coalesced batches count as used by the last of them", "cache/planning/planner.py",
        "        self.plan_number += num_plans\n        self.index.maintain(num_rows)\n        self._undo",
        "        self.plan_number += 1\n        self.index.maintain(num_rows)\n        self._undo",
        "tests/loop/test_coalescing.py tests/test_exactness.py",
    ),
    Mutation(
        "a plan that does not fit changes nothing", "cache/planning/planner.py",
        "            placed = placed & fits\n", "",
        "tests/test_exactness.py tests/cache/planning/test_planner.py",
    ),
    Mutation(
        "a batch waits for its own moves", "loop/scheduler.py",
        "        self.wait_event(ticket.ready)\n", "",
        "tests/test_exactness.py::test_equal_to_uncached",
    ),
    Mutation(
        "an evicted row is written back", "cache/row_cache.py",
        "Moves(plan.move_slots, plan.move_out, plan.move_in, plan.num_moves)",
        "Moves(plan.move_slots, torch.full_like(plan.move_out, NO_ROW), plan.move_in, plan.num_moves)",
        "tests/test_exactness.py::test_equal_to_uncached",
    ),
    Mutation(
        "a row that enters the cache is fetched", "cache/row_cache.py",
        "Moves(plan.move_slots, plan.move_out, plan.move_in, plan.num_moves)",
        "Moves(plan.move_slots, plan.move_out, torch.full_like(plan.move_in, NO_ROW), plan.num_moves)",
        "tests/test_exactness.py::test_equal_to_uncached",
    ),
    Mutation(
        "overflow copies are written back", "loop/overflow_copies.py",
        "            self._unwritten = ticket\n", "            pass\n",
        "tests/test_exactness.py::test_equal_to_uncached",
    ),
    Mutation(
        "overflow copies are written back only if nothing was planned since", "loop/ticket_updates.py",
        "return not ticket.overflows or ticket.plan.plan_number == scheduler.cache.planner.plan_number", "return True",
        "tests/nn/test_accumulation.py",
    ),
    Mutation(
        "an open autograd graph retains its ticket", "nn/accumulation.py",
        "        scheduler.retain(ticket)\n        self._end = weakref.finalize(self, scheduler.release_later, ticket)",
        "        self._end = weakref.finalize(self, str, ticket)\n        scheduler = None  # noqa",
        "tests/nn/test_accumulation.py tests/test_exactness.py::test_equal_to_uncached",
    ),
    Mutation(
        "a store written from outside makes overflow copies worthless", "loop/scheduler.py",
        "            self.cache.planner.plan_number += 1"
        "  # so that `can_update_in_place` no longer accepts overflow copies\n",
        "",
        "tests/nn/test_accumulation.py",
    ),
    Mutation(
        "gradients of a row are added up in the order of tables and ids", "cache/row_cache.py",
        "        unique = unique_rows(rows)\n        if self.numbering is None:\n",
        "        if self.numbering is not None:\n"
        "            row_of = self.numbering.row_of.to(rows.device).long()\n"
        "            unique = unique_rows(torch.where(rows >= 0, row_of[rows.clamp(min=0)], rows))\n"
        "            return unique, torch.argsort(row_of)[unique.rows.clamp(min=0)]\n"
        "        unique = unique_rows(rows)\n        if self.numbering is None:\n",
        "tests/nn/test_row_order.py",
    ),
    Mutation(
        "one backward pass is one optimizer step", "nn/accumulation.py",
        "        is_alone = not (step.is_accumulating or self._open or opened.has_ended)\n",
        "        is_alone = not step.is_accumulating\n",
        "tests/nn/test_accumulation.py tests/test_exactness.py::test_equal_to_uncached",
    ),
    Mutation(
        "a forward pass that is reached again does not take a step of its own", "nn/accumulation.py",
        " or self._open or opened.has_ended)", " or self._open)",
        "tests/nn/test_accumulation.py",
    ),
    Mutation(
        "gradients of a failed backward pass are dropped", "nn/accumulation.py",
        "            self._reached.clear()  # of a backward pass that failed\n            self._backward_pass",
        "            self._backward_pass",
        "tests/nn/test_accumulation.py",
    ),
    Mutation(
        "a batch with a bad id has no rows at all", "nn/lookups.py",
        "torch.where(any_bad, BAD_ID, NOTHING_BAD), any_bad\n",
        "torch.where(any_bad, BAD_ID, NOTHING_BAD), bad\n",
        "tests/nn/test_bad_input.py",
    ),
    Mutation(
        "an update waits for the stale read of the next batch", "loop/ticket_updates.py",
        "    if scheduler.stale_reads is not None and scheduler.stale_reads.last is not None:\n"
        "        scheduler.wait_event(scheduler.stale_reads.last)\n"
        "    _apply_step(scheduler, ticket, grads, (ticket,))",
        "    _apply_step(scheduler, ticket, grads, (ticket,))",
        "tests/strategies/test_heca.py",
    ),
    Mutation(
        "pinned rows stay", "ops/select_victims/reference.py",
        "& ~pinned", "", "tests/cache tests/strategies/test_heca.py",
    ),
    Mutation(
        "a tier writes changed rows back before their slots are used again", "cache/tier.py",
        "        self._changed[slots] = True\n", "        pass\n",
        "tests/stores/test_contract.py tests/test_exactness.py::test_equal_to_uncached",
    ),
    Mutation(
        "every plan is resolved before the cache is written back", "loop/scheduler.py",
        '        """Write every row of the cache back to the store, and wait for it."""\n'
        "        with self.exclusive:\n            self._complete_plans()\n",
        '        """Write every row of the cache back to the store, and wait for it."""\n'
        "        with self.exclusive:\n",
        "tests/test_exactness.py tests/loop tests/nn",
    ),
)  # fmt: skip


def mutate(mutation: Mutation, source: Path) -> None:
    """Change the copy of the source. The changed lines must occur exactly once."""
    path = source / "hotrows" / mutation.path
    text = path.read_text()
    found = text.count(mutation.before)
    if found != 1:
        raise SystemExit(f"{mutation.path}: the lines of {mutation.rule!r} occur {found} times, expected once")
    path.write_text(text.replace(mutation.before, mutation.after))


def run_tests(tests: str, source: Path) -> tuple[bool, str]:
    """Run tests on a copy of the source: whether one failed, and the first that did."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider",
        "--hypothesis-profile=ci", *tests.split(),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return True, f"no end within {LIMIT} s"
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return done.returncode == 1, failed[0] if failed else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="only rules whose text contains this")
    given = parser.parse_args(arguments)
    chosen = [mutation for mutation in MUTATIONS if given.only in mutation.rule]
    num_alive = 0
    for number, mutation in enumerate(chosen, start=1):
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "src"
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            mutate(mutation, source)
            fails, test = run_tests(mutation.tests, source)
        num_alive += not fails
        found = f"fails: {test}" if fails else "NOTHING FAILS"
        print(f"[{number}/{len(chosen)}] {time.monotonic() - start:4.0f} s  {mutation.rule}: {found}", flush=True)
    print(f"a test fails for {len(chosen) - num_alive} of {len(chosen)} rules when they are taken out")
    return 1 if num_alive else 0


if __name__ == "__main__":
    sys.exit(main())
