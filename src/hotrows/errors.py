"""The exceptions of hotrows. Each is also a subclass of the built-in exception that a PyTorch user would expect."""

from collections.abc import Mapping
from typing import Any


class BadIdError(ValueError, IndexError):
    """A batch has an id that its table does not have. The batch has changed nothing."""


class OutOfMemoryError(ValueError, MemoryError):
    """The rows or the cache need more memory than there is. It is raised before anything is allocated."""


class NotFiniteError(FloatingPointError):
    """A loss, a prediction or a trained value is NaN or infinite.

    Attributes:
        details: what is known about it, as JSON values.
    """

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = dict(details or {})
