"""The exceptions of hotrows. All of them are also the built-in kind that a PyTorch user would expect."""


class BadIdError(ValueError, IndexError):
    """A batch has an id that its table does not have. Nothing was changed by that batch."""


class OutOfMemoryError(ValueError, MemoryError):
    """Rows or cache need more memory than there is; raised before anything is allocated."""
