"""Products of matrices that leave a few multiprocessors to the kernels which move rows beside them.

Where there are more tiles than multiprocessors, cuBLAS likes kernels with one program for each multiprocessor, which
take their tiles in turn. Where one of these is taken by another kernel, a program waits until others have ended, and
the product takes up to twice as long. With 128 of 132 it hardly takes longer: tiles come in powers of two. Products of
fewer tiles have no such kernel, and one that is chosen for fewer multiprocessors takes longer.

A plain product is made by cuBLAS, whose handle each thread has to itself; one with a bias and a ReLU by cuBLASLt, which
PyTorch tells how many to leave alone by a number of the whole process, here for as long as one product is launched.
"""

import ctypes
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

FREE = 4  # multiprocessors; rows are moved by three or four
FEWEST = 64  # a smaller device has none to spare
TILE = 128  # rows and columns
SUCCESS = 0


@contextmanager
def with_room(left: Tensor, right: Tensor) -> Iterator[None]:
    """The product of these matrices by cuBLAS, by this thread, leaves `FREE` multiprocessors alone if it is large.

    Not one with a bias; see `with_room_beside_bias`.
    """
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


@contextmanager
def with_room_beside_bias(left: Tensor, right: Tensor) -> Iterator[None]:
    """The same for a product by cuBLASLt: one to which a bias is added."""
    carve_out = _carve_out() if _has_room(left, right) else None
    if carve_out is None or torch._C._get_sm_carveout_experimental() is not None:  # which the user has set
        yield
        return
    carve_out(FREE)
    try:
        yield
    finally:
        carve_out(None)


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


@cache
def _carve_out() -> Callable[[int | None], None] | None:
    """Sets how many multiprocessors cuBLASLt leaves alone; None where PyTorch has no such call (it is experimental)."""
    if not hasattr(torch._C, "_set_sm_carveout_experimental") or not hasattr(torch._C, "_get_sm_carveout_experimental"):
        return None
    with warnings.catch_warnings():  # it says so, once
        warnings.simplefilter("ignore")
        _Quietly.apply(torch.empty(0))  # type: ignore[no-untyped-call]
    return torch._C._set_sm_carveout_experimental


class _Quietly(torch.autograd.Function):
    """Sets it once, and back. Within such a function, what C++ warns of is a warning of Python."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        before = torch._C._get_sm_carveout_experimental()
        torch._C._set_sm_carveout_experimental(FREE)
        torch._C._set_sm_carveout_experimental(before)
        return x
