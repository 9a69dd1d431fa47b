"""Runs many programs, and counts what was found."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.programs.check import ProgramFailsError, check_program, failure_of, shortened
from tests.programs.program import draw_program


@dataclass(frozen=True)
class Failure:
    """A program that has failed: how, and a shorter program that fails as well."""

    seed: int
    how: str
    shorter: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.how}\n{self.shorter}"


@dataclass
class Tally:
    """The programs of consecutive seeds.

    Attributes:
        num_uncertain: programs in which the naive model did not know some values, because a maximum was ambiguous.
        deviation: of the library from the naive model, the largest one.
    """

    first_seed: int
    num_programs: int = 0
    num_values: int = 0
    num_uncertain: int = 0
    deviation: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        last = self.first_seed + self.num_programs - 1
        return (
            f"{self.num_programs} programs, seeds {self.first_seed} to {last}: {len(self.failures)} failed; "
            f"{self.num_values} values compared, largest deviation from float64 {self.deviation:.1e}, "
            f"{self.num_uncertain} programs with an ambiguous maximum"
        )

    def run(self, device: str = "cpu") -> None:
        """Run the program of the next seed."""
        seed = self.first_seed + self.num_programs
        program = draw_program(seed, device)
        try:
            checked = check_program(program, device)
        except ProgramFailsError as error:
            self.num_programs += 1
            self.failures.append(Failure(seed, str(error), str(program)))
            shorter = shortened(program, device)
            # The calls of the shorter program have other numbers. It may fail only now and then.
            self.failures[-1] = Failure(seed, failure_of(shorter, device) or str(error), str(shorter))
            return
        self.num_programs += 1
        self.num_values += checked.num_values
        self.num_uncertain += checked.num_unknown > 0
        self.deviation = max(self.deviation, checked.deviation)


def run_programs(
    first_seed: int, number: int, device: str = "cpu", after_each: Callable[[Tally], None] = lambda tally: None
) -> Tally:
    """Run the programs of consecutive seeds."""
    tally = Tally(first_seed)
    while tally.num_programs < number:
        tally.run(device)
        after_each(tally)
    return tally
