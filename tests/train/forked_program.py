"""`hotrows` commands in processes of their own that start at once: forks of a process that has imported everything.

A fork has no threads and has trained nothing, so it behaves like a program just started, without the seconds that
importing PyTorch takes. When the command has ended, so does the process, without the seconds that taking PyTorch down
takes. Signals come from another process, as Ctrl-C and `kill` send them.
"""

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

HANGS_AFTER = 60.0  # seconds
ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """How a program has ended. The code is negative for a signal."""

    code: int
    seconds: float
    output: str


class Programs:
    """Starts programs, one after the other."""

    def __enter__(self) -> "Programs":
        self._server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.train.forked_program"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, at: TracebackType | None) -> None:
        self._server.communicate(timeout=60)

    def run(self, *arguments: object, cwd: Path, signals: tuple[tuple[float, signal.Signals], ...] = ()) -> Ended:
        """Run `hotrows` with some arguments, and send it signals.

        Args:
            signals: seconds after the start, or after the signal before, and the signal.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        order = {"arguments": list(map(str, arguments)), "cwd": str(cwd), "signals": signals}
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return Ended(*json.loads(self._server.stdout.readline()))


def serve() -> None:
    """Run the program that each line of the input describes, and print how it has ended."""
    import torch
    import torch._dynamo  # PyTorch's optimizers import it
    import torch.utils.tensorboard
    import torchmetrics.functional.classification  # noqa: F401

    import hotrows.report
    import hotrows.train.run  # noqa: F401
    from hotrows.cli.main import app

    torch.set_num_threads(1)
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        output = Path(order["cwd"]) / "output.txt"
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.chdir(order["cwd"])
            with output.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), 0)
            sys.stdin = open(os.devnull)  # noqa: SIM115  (the process ends with it)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                app(order["arguments"], prog_name="hotrows")
            except BaseException as error:
                code = error.code if isinstance(error, SystemExit) else 1
                if not isinstance(error, SystemExit):
                    traceback.print_exc()
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command has ended
                atexit._run_exitfuncs()
                sys.stdout.flush()
                os._exit(code if isinstance(code, int) else code is not None)
        code, seconds = _supervise(child, order["signals"])
        answers.write(json.dumps([code, seconds, output.read_text(errors="replace")]) + "\n")
        answers.flush()


def _supervise(child: int, signals: list[tuple[float, int]]) -> tuple[int, float]:
    """Send the signals, and wait for the end. A program that hangs is killed."""
    began = time.perf_counter()
    for seconds, number in signals:
        stop = time.perf_counter() + seconds
        while time.perf_counter() < stop:
            time.sleep(min(0.001, max(0.0, stop - time.perf_counter())))
        os.kill(child, number)  # a process that has ended already is not yet reaped, so its id is still its own
    while time.perf_counter() < began + HANGS_AFTER:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), time.perf_counter() - began
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError("the program hangs")


if __name__ == "__main__":
    serve()
