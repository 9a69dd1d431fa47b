"""Work that Ctrl-C does not interrupt in the middle: a state change is whole, or it has not begun.

Python runs signal handlers in the main thread, between any two bytecodes. The handler of SIGINT raises
KeyboardInterrupt there, which would leave a state change half done. Inside a `with defer_sigint()` block, another
handler is installed that only notes the signal. When the block ends, the handler that was there before gets the signal.
Blocks may be nested, and the signal is delivered when the outermost one ends. Other threads never run signal handlers,
so a block does nothing there.
"""

# `signal` wraps these calls in conversions to enums, which take ten times as long as the calls themselves.
import _signal  # type: ignore[import-not-found]
import threading
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any

SIGINT = _signal.SIGINT
_main = threading.main_thread().ident


class _State:
    """Only the main thread writes it. A signal may arrive between any two lines, so it is valid after each of them."""

    depth = 0  # blocks that are open
    before: Any = None  # the handler that was there before `_handle` was installed
    arrived: tuple[int, FrameType | None] | None = None  # the first signal that arrived inside the open blocks


def _handle(number: int, frame: FrameType | None) -> None:
    if _State.depth > 0:
        _State.arrived = _State.arrived or (number, frame)
    else:  # no block is open: the signal came just after `_install` or just before `_uninstall`
        _State.arrived = None
        _deliver(number, frame)
        if _signal.getsignal(SIGINT) is _State.before:  # a block that the user's handler opened has uninstalled ours
            _signal.signal(SIGINT, _handle)


def _deliver(number: int, frame: FrameType | None) -> None:
    """Do what the signal would have done without `_handle`."""
    before = _State.before
    if callable(before):
        before(number, frame)
    elif before == _signal.SIG_DFL:
        _signal.signal(SIGINT, _signal.SIG_DFL)
        _signal.raise_signal(SIGINT)


def _install() -> None:
    before = _signal.getsignal(SIGINT)
    if before is None or before is _handle:  # None: a handler that was not installed from Python, and must stay
        return
    _State.before = before
    _signal.signal(SIGINT, _handle)


def _uninstall() -> None:
    if _signal.getsignal(SIGINT) is _handle:  # otherwise somebody has installed another one inside the block
        _signal.signal(SIGINT, _State.before)


class _Block:
    """A reentrant context manager. As a class it takes a fraction of the time of a generator."""

    def __enter__(self) -> None:
        if get_ident() == _main:
            if _State.depth == 0:
                _install()
            _State.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if get_ident() == _main:
            _State.depth -= 1
            if _State.depth == 0:
                _uninstall()
                arrived, _State.arrived = _State.arrived, None
                if arrived is not None:
                    _deliver(*arrived)


_block = _Block()


def defer_sigint() -> _Block:
    """Deliver a SIGINT that arrives inside the block when the block ends."""
    return _block


def is_deferring() -> bool:
    """True while the main thread is inside a block, whichever thread asks."""
    return _State.depth > 0
