"""Products of matrices that leave a few multiprocessors to the kernels which move rows beside them.

cuBLAS likes kernels with one program for each multiprocessor, which take their tiles in turn. Where one of these is
taken by another kernel, a program waits until others have ended, and the product takes up to twice as long. With 128 of
132 it hardly takes longer: tiles come in powers of two.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

FREE = 4  # multiprocessors; rows are moved by three
FEWEST = 64  # a smaller device has none to spare


@contextmanager
def with_room(operand: Tensor) -> Iterator[None]:
    """What this thread multiplies inside by cuBLAS, on the operand's device, leaves `FREE` multiprocessors alone."""
    library = _cublas() if operand.is_cuda and operand.device.index == torch.cuda.current_device() else None
    count = torch.cuda.get_device_properties(operand.device).multi_processor_count if library is not None else 0
    if library is None or count < FEWEST or FREE == 0:
        yield
        return
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())  # type: ignore[no-untyped-call]
    before = ctypes.c_int(0)
    library.cublasGetSmCountTarget(handle, ctypes.byref(before))
    library.cublasSetSmCountTarget(handle, count - FREE)
    try:
        yield
    finally:
        library.cublasSetSmCountTarget(handle, before)


@cache
def _cublas() -> ctypes.CDLL | None:
    """The library that PyTorch has loaded, None where there is none of that name."""
    version = torch.version.cuda
    if version is None:
        return None
    try:
        library = ctypes.CDLL(f"libcublas.so.{version.split('.')[0]}")
    except OSError:
        return None
    return library if hasattr(library, "cublasSetSmCountTarget") else None
