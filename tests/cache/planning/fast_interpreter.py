"""Makes Triton's interpreter several times as fast, for tests that run kernels on thousands of small inputs."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def fast_interpreter() -> Iterator[None]:
    """Inside, the interpreter leaves out what costs it most of its time on small arrays.

    - It replaces the functions of `triton.language` at every launch and at every call of a kernel's function. Here it
      does so once.
    - It computes every sum and product of int32 a second time in int64, to report overflows. The tests of the single
      kernels still report them.
    - It looks up NumPy's type, and makes the shape of a tensor, anew for every tensor.
    """
    import triton.language as tl
    from triton.language import core
    from triton.runtime import interpreter

    scopes: dict[int, Any] = {}
    patch_language, numpy_type = interpreter._patch_lang, interpreter._get_np_dtype

    class Kept:
        def restore(self) -> None:
            pass

    def patch_once(function: Callable[..., Any]) -> Kept:
        key = id(function.__globals__)
        if key not in scopes:
            scopes[key] = patch_language(function)
        return Kept()

    numpy_types: dict[str, Any] = {}

    def known_numpy_type(dtype: Any) -> Any:
        element = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        if element.name not in numpy_types:
            numpy_types[element.name] = numpy_type(element)
        return numpy_types[element.name]

    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        shape = type.shape if type.is_block() else ()
        if shape not in shapes:
            shapes[shape] = core.constexpr(math.prod(shape)), core.tuple([core.constexpr(size) for size in shape])
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = shapes[shape]

    options = interpreter.interpreter_builder.options
    checks_overflow = options.sanitize_overflow
    object.__setattr__(options, "sanitize_overflow", False)  # the options are frozen
    try:
        with (
            patch.object(interpreter, "_patch_lang", patch_once),
            patch.object(interpreter, "_get_np_dtype", known_numpy_type),
            patch.object(core.tensor, "__init__", init_tensor),
        ):
            yield
    finally:
        object.__setattr__(options, "sanitize_overflow", checks_overflow)
        for scope in reversed(scopes.values()):
            if scope is not None:
                scope.restore()
