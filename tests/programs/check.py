"""Checks one program: every machine must have seen the same."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tests.programs.library_machine import LibraryMachine
from tests.programs.machines import FailedCallError, NaiveMachine, Seen
from tests.programs.modules import Setting
from tests.programs.naive import LEAST_MARGIN, Array
from tests.programs.program import Program, described

# A value of the library in float32 is this close to that of the naive model in float64. Rows that are this close to
# their true values cannot change which one is the maximum if its margin is LEAST_MARGIN, so a step of the optimizer
# never differs by more than rounding.
TOLERANCE = LEAST_MARGIN / 2


class ProgramFailsError(AssertionError):
    """A program has shown that a rule is broken."""


@dataclass
class Checked:
    """What was found about a program that is right.

    Args:
        num_unknown: values that the naive model does not know, because a maximum was ambiguous.
        deviation: the largest one from the naive model.
    """

    num_values: int = 0
    num_unknown: int = 0
    deviation: float = 0.0


def check_program(program: Program, device: str = "cpu") -> Checked:
    """Run a program in any cache, without a cache, and in the naive model.

    Raises:
        ProgramFailsError: says which call went wrong, and how.
    """
    plain = [Setting("100%") for _ in program.specs]
    try:
        uncached = LibraryMachine(program, device, plain, program.looks_ahead_uncached).run()
        cached = LibraryMachine(program, device, program.settings, looks_ahead=True).run()
        naive = NaiveMachine(program, device, _initial_weights(program, uncached[0])).run()
    except FailedCallError as error:
        raise ProgramFailsError(str(error)) from error
    checked = Checked()
    names = ["the beginning", *(described(operation) for operation in program.operations), "the end"]
    for number, name in enumerate(names):
        found = _first_difference(cached[number], uncached[number])
        if found is None:
            found = _first_deviation(uncached[number], naive[number], checked)
        if found is not None:
            raise ProgramFailsError(f"call {number - 1}, {name}: {found}")
    return checked


def _initial_weights(program: Program, seen: Seen) -> list[dict[str, Array]]:
    found = []
    for number, spec in enumerate(program.specs):
        weights = {table.name: seen[f"module {number}.{table.name}.weight"] for table in spec.tables}
        found.append({name: rows.numpy() for name, rows in weights.items() if isinstance(rows, Tensor)})
    return found


def _first_difference(cached: Seen, uncached: Seen) -> str | None:
    """Where the library with a cache is not, bit for bit, the library without."""
    if cached.keys() != uncached.keys():
        return f"with a cache {list(cached)} were seen, without {list(uncached)}"
    for name, expected in uncached.items():
        found = cached[name]
        if isinstance(found, Tensor) and isinstance(expected, Tensor):
            if not _same_bits(found, expected):
                return f"{name} is, with a cache and without:\n{found}\n{expected}"
        elif found != expected:
            return f"{name} is {found!r} with a cache, {expected!r} without"
    return None


def _same_bits(found: Tensor, expected: Tensor) -> bool:
    found, expected = found.cpu(), expected.cpu()  # a module without a cache may keep its rows on the GPU
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype == torch.float32:
        found, expected = found.contiguous().view(torch.int32), expected.contiguous().view(torch.int32)
    return torch.equal(found, expected)


def _first_deviation(uncached: Seen, naive: Seen, checked: Checked) -> str | None:
    """Where the library without a cache is not close to the naive model."""
    if uncached.keys() != naive.keys():
        return f"without a cache {list(uncached)} were seen, in the naive model {list(naive)}"
    for name, expected in naive.items():
        found = uncached[name]
        checked.num_values += 1
        if expected is None:
            checked.num_unknown += 1
        elif isinstance(found, Tensor) and isinstance(expected, np.ndarray):
            values = found.cpu().numpy()
            if values.shape != expected.shape:
                return f"{name} has the shape {values.shape} without a cache, {expected.shape} in the naive model"
            deviation = _deviation(values, expected)
            checked.deviation = max(checked.deviation, deviation)
            if not deviation <= TOLERANCE:
                return f"{name} deviates by {deviation:.1e}, in the library and the naive model:\n{values}\n{expected}"
        elif found != expected:
            return f"{name} is {found!r} without a cache, {expected!r} in the naive model"
    return None


def _deviation(found: Array, expected: Array) -> float:
    """The largest difference, of values above one as a share of them."""
    return float((np.abs(found - expected) / np.maximum(1.0, np.abs(expected))).max(initial=0.0))


def failure_of(program: Program, device: str = "cpu") -> str | None:
    """How a program fails; None if it does not."""
    try:
        check_program(program, device)
    except ProgramFailsError as error:
        return str(error)
    return None


def shortened(program: Program, device: str = "cpu", budget: int = 300) -> Program:
    """A program that fails as well, without calls that it does not need for that.

    Args:
        budget: how many programs may be run to find it.
    """
    size = max(1, len(program.operations) // 2)
    while size > 0 and budget > 0:
        stop = len(program.operations)
        while stop > 0 and budget > 0:
            shorter = program.without(set(range(max(0, stop - size), stop)), device)
            budget -= 1
            if len(shorter.operations) < len(program.operations) and failure_of(shorter, device) is not None:
                program = shorter
            stop = min(stop - size, len(program.operations))
        size //= 2
    return program
