"""Work that Ctrl-C does not interrupt in the middle."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def defer_sigint() -> Iterator[None]:
    """Deliver a SIGINT that arrives inside when the block ends: half of the block's work would be worse than none."""
    before = signal.getsignal(signal.SIGINT)
    # None: a handler that was not installed from Python, which Python cannot restore.
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if arrived and callable(before):
            before(*arrived[0])
