"""A block that must raise. It keeps no traceback, whose frames would keep autograd graphs alive."""

import re
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def must_raise(kind: type[Exception], words: str) -> Iterator[None]:
    """Expect an exception of this kind, whose message has a match of the pattern `words`."""
    said = None
    try:
        yield
    except kind as error:
        said = str(error)
    assert said is not None, f"nothing was raised, expected {kind.__name__} ({words})"
    assert re.search(words, said), f"{kind.__name__} says {said!r}, expected {words!r}"
