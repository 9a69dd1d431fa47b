"""Products of matrices that leave a few multiprocessors to the kernels which move rows beside them.

cuBLAS likes kernels with one program for each multiprocessor, which take their tiles in turn. Where one of these is
taken by another kernel, a program waits until others have ended, and the product takes up to twice as long. With 128 of
132 it hardly takes longer: tiles come in powers of two.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

FREE = 4  # multiprocessors; rows are moved by three
FEWEST = 64  # a smaller device has none to spare
SUCCESS = 0


@contextmanager
def with_room(operand: Tensor) -> Iterator[None]:
    """What this thread multiplies inside by cuBLAS, on the operand's device, leaves `FREE` multiprocessors alone."""
    if torch.compiler.is_compiling() or not operand.is_cuda or operand.device.index != torch.cuda.current_device():
        yield
        return
    library, before = _cublas(), ctypes.c_int(0)
    count = torch.cuda.get_device_properties(operand.device).multi_processor_count
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())  # type: ignore[no-untyped-call]
    if library is None or count < FEWEST or library.cublasGetSmCountTarget(handle, ctypes.byref(before)) != SUCCESS:
        yield
        return
    library.cublasSetSmCountTarget(handle, count - FREE)
    try:
        yield
    finally:
        library.cublasSetSmCountTarget(handle, before)


@cache
def _cublas() -> ctypes.CDLL | None:
    """The library that PyTorch has loaded, None where there is none of that name: its handle is for no other."""
    version, loaded_already = torch.version.cuda, getattr(os, "RTLD_NOLOAD", None)
    if version is None or loaded_already is None:
        return None
    try:
        library = ctypes.CDLL(f"libcublas.so.{version.split('.')[0]}", mode=loaded_already | os.RTLD_NOW)
    except OSError:
        return None
    return library if hasattr(library, "cublasSetSmCountTarget") else None
