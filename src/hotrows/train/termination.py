"""How signals end a run: SIGTERM ends it as Ctrl-C does, so that what was trained is kept, and no Ctrl-C is lost."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any

from hotrows.runtime.defer_sigint import defer_sigint


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, SIGTERM is SIGINT, and a SIGINT that arrives while Python finalizes an object is sent again.

    Python prints the exception of a finalizer and goes on. So a Ctrl-C that comes while an iterator is collected would
    show a traceback, and the run would not end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set handlers
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    report = sys.unraisablehook

    def send_again(unraisable: Any) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            with suppress(KeyboardInterrupt), defer_sigint():  # a second Ctrl-C must not end the hook before the start
                threading.Thread(target=_interrupt_later, args=(send_again.__code__,)).start()
        else:
            report(unraisable)

    before = signal.signal(signal.SIGTERM, interrupt)
    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = report
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _interrupt_later(hook: CodeType) -> None:
    """Send SIGINT once the main thread has left `hook`, where Python would print the exception and go on."""
    main = threading.main_thread().ident
    assert main is not None
    while True:
        frame = sys._current_frames().get(main)
        while frame is not None and frame.f_code is not hook:
            frame = frame.f_back
        if frame is None:
            break
        time.sleep(0.001)
    signal.raise_signal(signal.SIGINT)
