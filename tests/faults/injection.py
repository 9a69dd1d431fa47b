"""Faults at a chosen line of the library: an interrupt, or an exception, at the n-th line that a program executes."""

import linecache
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import hotrows

SOURCE = Path(hotrows.__file__).parent
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

    Without a fault it counts the lines.
    """

    def __init__(self, number: int = 0, fault: Callable[[], None] | None = None, folders: Sequence[str] = CORE) -> None:
        self._number = number
        self._fault = fault
        self._prefixes = tuple(f"{SOURCE / folder}/" for folder in folders)
        self.num_lines = 0
        self.where = ""  # the line at which the fault was carried out
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
        if event == "line" and not _ends_a_block(frame):
            self.num_lines += 1
            if self.num_lines == self._number and self._fault is not None:
                self.where = f"{Path(frame.f_code.co_filename).relative_to(SOURCE)}:{frame.f_lineno}"
                self._fault()
        return self._trace_line


def _ends_a_block(frame: FrameType) -> bool:
    """True at a `with` statement that defers signals or takes the lock.

    Python traces it a second time before it calls `__exit__`, where no handler is active any more. Only a trace function
    can raise there: signals are handled behind calls and jumps, and there is none. What it raised would skip `__exit__`,
    so that the lock would stay taken and SIGINT deferred.
    """
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return line.startswith("with ") and ("exclusive" in line or "defer_sigint" in line)
