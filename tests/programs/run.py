"""Run many random programs.

    python -m tests.programs.run --programs 10000 --seed 0

The exit code is 1 if a program has failed. Each failure is printed with its seed and with a shorter program that fails
as well. Ctrl-C ends the run and prints what was found until then.
"""

import argparse
import logging
import sys
import time
from collections.abc import Sequence

import torch

from tests.programs.tally import Tally, run_programs

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Prints failures at once, and a line each few seconds."""

    def __init__(self, first_seed: int, number: int) -> None:
        self._number = number
        self._num_failures = 0
        self._started = self._last = time.monotonic()
        self.tally = Tally(first_seed)

    def __call__(self, tally: Tally) -> None:
        self.tally = tally
        for failure in tally.failures[self._num_failures :]:
            print(f"FAILED {failure}\n", flush=True)
        self._num_failures = len(tally.failures)
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            rate = tally.num_programs / (now - self._started)
            print(
                f"{tally.num_programs} of {self._number} programs, {rate:.1f} per second, {self._num_failures} failed",
                flush=True,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000, help="how many to run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first program (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="where the rows are cached (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on the CPU (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    torch.set_num_threads(given.threads)
    logging.getLogger("hotrows").setLevel(logging.ERROR)  # tiny caches and unknown ids are what programs are about
    progress = Progress(given.seed, given.programs)
    ended = ""
    try:
        run_programs(given.seed, given.programs, given.device, progress)
    except KeyboardInterrupt:
        ended = f", interrupted before the other {given.programs - progress.tally.num_programs}"
    print(f"{progress.tally}; {progress.seconds:.0f} s{ended}", flush=True)
    return 1 if progress.tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
