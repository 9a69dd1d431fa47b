"""The exceptions of hotrows. Each is also a subclass of the built-in exception that a PyTorch user would expect."""


class BadIdError(ValueError, IndexError):
    """A batch has an id that its table does not have. The batch has changed nothing."""


class OutOfMemoryError(ValueError, MemoryError):
    """The rows or the cache need more memory than there is. It is raised before anything is allocated."""
