"""One thread at a time changes the state of the caches of a module, and Ctrl-C does not interrupt it in the middle."""

import threading
from types import TracebackType

from hotrows.runtime.defer_sigint import defer_sigint


class Exclusive:
    """A reentrant context manager: a lock, and a block of `defer_sigint`."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        defer_sigint().__enter__()  # first, so that no interrupt can come between taking the lock and the block
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()
        defer_sigint().__exit__(kind, error, traceback)
