"""Faults at a chosen line of the library: an interrupt, or an exception, at the n-th line that a program executes."""

import dis
import linecache
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import hotrows

SOURCE = Path(hotrows.__file__).parent
NOP = dis.opmap["NOP"]
CORE = ("loop", "cache", "nn", "ops", "runtime")


class InjectedError(Exception):
    """What an exception at any line may be: memory that runs out, a user's callback that fails."""


def interrupt() -> None:
    """Ctrl-C: Python runs the handler before the next bytecode."""
    signal.raise_signal(signal.SIGINT)


def fail() -> None:
    raise InjectedError


class AtLine:
    """Carries a fault out at the `number`-th line (from 1) that the main thread executes in some folders of hotrows.

    Without a fault it counts the lines, and notes where they are in the source.
    """

    def __init__(self, number: int = 0, fault: Callable[[], None] | None = None, folders: Sequence[str] = CORE) -> None:
        self._number = number
        self._fault = fault
        self._prefixes = tuple(f"{SOURCE / folder}/" for folder in folders)
        self.num_lines = 0
        self.where = ""  # the line at which the fault was carried out
        self.numbers_at: dict[tuple[str, int], list[int]] = {}  # without a fault, by file and line in the file
        self._traced: dict[Any, bool] = {}

    def __enter__(self) -> "AtLine":
        sys.settrace(self._trace_call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.settrace(None)

    def _trace_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in self._traced:
            # These two defer signals and take the lock, and do nothing that can fail. A fault there would be left over:
            # SIGINT would be deferred until the program ends, and other threads would wait for the lock.
            defers = code.co_filename.endswith(("runtime/defer_sigint.py", "runtime/exclusive.py"))
            self._traced[code] = code.co_filename.startswith(self._prefixes) and not defers
        return self._trace_line if self._traced[code] else None

    def _trace_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and not _cannot_fail(frame.f_code, frame.f_lasti, frame.f_lineno):
            self.num_lines += 1
            if self._fault is None:
                line = (frame.f_code.co_filename, frame.f_lineno)
                self.numbers_at.setdefault(line, []).append(self.num_lines)
            elif self.num_lines == self._number:
                self.where = f"{Path(frame.f_code.co_filename).relative_to(SOURCE)}:{frame.f_lineno}"
                self._fault()
        return self._trace_line


@cache
def _cannot_fail(code: CodeType, instruction: int, number: int) -> bool:
    """True at two kinds of line where a trace function can raise, and neither the program nor a signal's handler can.

    Exceptions there leave the blocks around them without calling `__exit__`, so that the lock would stay taken and
    SIGINT deferred. One kind is the `NOP` of a `try:`. The other is the end of a `with` block, where Python traces the
    line of the statement a second time: signals are handled behind calls and jumps, of which there is none.
    """
    if code.co_code[instruction] == NOP:
        return True
    line = linecache.getline(code.co_filename, number).strip()
    return line.startswith("with ") and ("exclusive" in line or "defer_sigint" in line)
