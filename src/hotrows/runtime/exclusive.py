"""A lock: one thread at a time changes the state of a module's caches, and Ctrl-C does not interrupt the change."""

import os
import threading
from types import TracebackType

from hotrows.runtime.defer_sigint import defer_sigint

FORKED = (
    "this process was forked from the one that made the bags, and their threads did not come along: start processes "
    "with multiprocessing.get_context('spawn'), or make the bags in this process"
)


class Exclusive:
    """A reentrant context manager: a lock, and a block of `defer_sigint`.

    It cannot be entered in a process that was forked from the one that made it. There, the state may be in the middle
    of a change, and the threads of the caches are missing.
    """

    __slots__ = ("_lock", "_process")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()

    @property
    def is_forked(self) -> bool:
        """True if this process was forked from the one that made this object."""
        return os.getpid() != self._process

    @property
    def is_entered(self) -> bool:
        """True if the calling thread is inside the block."""
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def __enter__(self) -> None:
        if self.is_forked:
            raise RuntimeError(FORKED)
        defer_sigint().__enter__()  # first, so that no interrupt can come between taking the lock and the block
        try:
            self._lock.acquire()
        except BaseException:  # the handler of another signal raised while this thread waited for the lock
            defer_sigint().__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._lock.release()
        finally:
            defer_sigint().__exit__(kind, error, traceback)
