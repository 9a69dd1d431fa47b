"""Products of matrices that leave a few multiprocessors to the kernels which move rows beside them.

Where there are more tiles than multiprocessors, cuBLAS likes kernels with one program for each multiprocessor, which
take their tiles in turn. Where one of these is taken by another kernel, a program waits until others have ended, and
the product takes up to twice as long. With 128 of 132 it hardly takes longer: tiles come in powers of two. Products of
fewer tiles have no such kernel, and one that is chosen for fewer multiprocessors takes longer.
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
TILE = 128  # rows and columns
SUCCESS = 0


@contextmanager
def with_room(left: Tensor, right: Tensor) -> Iterator[None]:
    """The product of these matrices by cuBLAS, by this thread, leaves `FREE` multiprocessors alone if it is large."""
    library = _cublas() if _has_room(left, right) else None
    if library is None:
        yield
        return
    before = ctypes.c_int(0)
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())  # type: ignore[no-untyped-call]
    if library.cublasGetSmCountTarget(handle, ctypes.byref(before)) != SUCCESS:
        yield
        return
    count = torch.cuda.get_device_properties(left.device).multi_processor_count
    library.cublasSetSmCountTarget(handle, count - FREE)
    try:
        yield
    finally:
        library.cublasSetSmCountTarget(handle, before)


def _has_room(left: Tensor, right: Tensor) -> bool:
    """Whether the product is large enough, on the device whose handle this thread has."""
    if torch.compiler.is_compiling() or not left.is_cuda or left.device.index != torch.cuda.current_device():
        return False
    count = torch.cuda.get_device_properties(left.device).multi_processor_count
    return bool(-(-left.shape[0] // TILE) * -(-right.shape[1] // TILE) > count >= FEWEST)


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
