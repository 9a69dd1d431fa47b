"""How signals end a run: SIGTERM ends it as Ctrl-C does, so that what was trained is kept, and no Ctrl-C is lost."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


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
            # From another thread, because here the signal would arrive in the finalizer again.
            threading.Thread(target=signal.raise_signal, args=(signal.SIGINT,)).start()
        else:
            report(unraisable)

    before = signal.signal(signal.SIGTERM, interrupt)
    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = report
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
