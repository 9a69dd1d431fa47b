"""Random programs: whatever is called, a cache changes no bit, and the result is that of a naive model in float64."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hotrows.cache.planning.protocol import Plan
from hotrows.cache.row_cache import RowCache
from hotrows.loop.in_flight import InFlight
from hotrows.loop.ticket import BatchTicket
from hotrows.nn.accumulation import GradientAccumulation, OpenPass
from hotrows.ops.rows import NO_ROW
from hotrows.ops.swap import Moves
from tests.programs import tally
from tests.programs.check import failure_of, shortened
from tests.programs.naive import NaiveModule, NaiveOptimizer
from tests.programs.operations import OPERATIONS, BadCall
from tests.programs.program import BAD_CALLS, Program, draw_program
from tests.programs.run import main
from tests.programs.tally import run_programs
from tests.scenarios import examples

# HOTROWS_PROGRAMS is the number of programs, HOTROWS_PROGRAM_SEED the seed of the first one.
FIRST_SEED = int(os.environ.get("HOTROWS_PROGRAM_SEED", "0"))
USUAL_NUM = {"cpu": 240, "cuda": 500}
NUM_ON_CPU = int(os.environ.get("HOTROWS_PROGRAMS", USUAL_NUM["cpu"]))
NUM_ON_GPU = int(os.environ.get("HOTROWS_PROGRAMS", examples(USUAL_NUM["cuda"])))
CHUNKS_ON_CPU, CHUNKS_ON_GPU = 6, 100  # tests, which several processes can share

RecordProperty = Callable[[str, object], None]


def check_chunk(chunk: int, num_chunks: int, number: int, device: str, record_property: RecordProperty) -> None:
    """Run one of several equal parts of the programs."""
    first, stop = (FIRST_SEED + number * part // num_chunks for part in (chunk, chunk + 1))
    found = run_programs(first, stop - first, device)
    print(found)
    record_property("count", found.num_programs)
    record_property("seeds", f"{first} to {stop - 1}")
    record_property("failures", len(found.failures))
    assert not found.failures, "\n\n".join(map(str, found.failures))


@pytest.mark.parametrize("chunk", range(CHUNKS_ON_CPU))
def test_random_programs(chunk: int, record_property: RecordProperty) -> None:
    check_chunk(chunk, CHUNKS_ON_CPU, NUM_ON_CPU, "cpu", record_property)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", range(CHUNKS_ON_GPU))
def test_random_programs_on_a_gpu(chunk: int, record_property: RecordProperty) -> None:
    check_chunk(chunk, CHUNKS_ON_GPU, NUM_ON_GPU, "cuda", record_property)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_call_is_drawn(device: str) -> None:
    """In the programs that are run unless the environment says otherwise."""
    drawn = [call for seed in range(USUAL_NUM[device]) for call in draw_program(seed, device).operations]
    assert {type(call) for call in drawn} == set(OPERATIONS)
    assert {call.what for call in drawn if isinstance(call, BadCall)} == set(BAD_CALLS)


def test_a_program_depends_on_its_seed_alone() -> None:
    assert str(draw_program(7)) == str(draw_program(7)) != str(draw_program(8))
    program = draw_program(7)
    assert program.without(set(), "cpu") == program


# -- the programs can fail ------------------------------------------------------------------------------------------


def forget_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The naive model forgets the rows of the second optimizer step."""
    step = NaiveOptimizer.step

    def forgetful(optimizer: NaiveOptimizer, number: int, *arguments: Any) -> None:
        if number != 2:
            step(optimizer, number, *arguments)

    monkeypatch.setattr(NaiveOptimizer, "step", forgetful)


def lose_evicted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that leave the cache are not written back."""

    def move_planned(cache: RowCache, plan: Plan) -> None:
        if not plan.is_moved:
            nothing = torch.full_like(plan.move_out, NO_ROW)
            cache.move(Moves(plan.move_slots, nothing, plan.move_in, plan.num_moves))
            plan.is_moved = True

    monkeypatch.setattr(RowCache, "move_planned", move_planned)


def evict_what_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may take the slots of batches that were not trained yet."""
    monkeypatch.setattr(InFlight, "oldest", property(lambda in_flight: None))


def step_at_each_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward pass through several forward passes is several optimizer steps."""
    monkeypatch.setattr(GradientAccumulation, "open", lambda self, ticket: OpenPass(self._scheduler, ticket))


def accept_bad_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at what the check of the ids has found."""
    monkeypatch.setattr(BatchTicket, "check_ids", lambda ticket: None)


@pytest.mark.parametrize(
    "break_a_rule",
    [forget_a_step, lose_evicted_rows, evict_what_is_in_flight, step_at_each_forward_pass, accept_bad_ids],
)
def test_a_broken_rule_is_found(
    break_a_rule: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = [draw_program(seed) for seed in range(100)]
    assert all(failure_of(program) is None for program in programs[:5])
    break_a_rule(monkeypatch)
    program = next((program for program in programs if failure_of(program) is not None), None)
    assert program is not None
    shorter = shortened(program, budget=40)
    assert len(shorter.operations) <= len(program.operations)
    assert failure_of(shorter) is not None


# -- the script -----------------------------------------------------------------------------------------------------


def test_the_script_says_what_it_has_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--programs", "3", "--seed", "20"]) == 0
    assert "3 programs, seeds 20 to 22: 0 failed" in capsys.readouterr().out


def test_the_script_says_which_program_has_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NaiveModule, "apply", lambda module, passes: None)
    assert main(["--programs", "2", "--seed", "3"]) == 1
    out = capsys.readouterr().out
    assert "FAILED seed 3: call" in out
    assert "program 3\n  module 0: Spec(" in out
    assert "2 programs, seeds 3 to 4: 2 failed" in out


def test_an_interrupt_ends_the_script_with_what_was_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def draw(seed: int, device: str) -> Program:
        if len(drawn) == 2:
            raise KeyboardInterrupt
        drawn.append(seed)
        return draw_program(seed, device)

    monkeypatch.setattr(tally, "draw_program", draw)
    assert main(["--programs", "10"]) == 0
    out = capsys.readouterr().out
    assert "2 programs, seeds 0 to 1: 0 failed" in out
    assert out.rstrip().endswith("interrupted before the other 8")
