"""Matrix products that leave a few multiprocessors to the kernels which move rows beside them.

If a product has more tiles than there are multiprocessors, cuBLAS prefers kernels with one program per multiprocessor
that loop over their tiles. If another kernel occupies one of these multiprocessors, a program waits until others have
ended, and the product takes up to twice as long. On 128 of 132 multiprocessors the product takes hardly longer, because
the number of tiles is a power of two. Smaller products have no such kernel, and a kernel that is chosen for fewer
multiprocessors takes longer.

cuBLAS makes a plain product, and every thread has a cuBLAS handle of its own. cuBLASLt makes a product with a bias and
a ReLU. How many multiprocessors it leaves free is one number of the whole process, so it is set only while one product
is launched.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hotrows.runtime import cuda_private

NUM_FREE = 4  # multiprocessors; moves of rows use three or four
MIN_MULTIPROCESSORS = 64  # a smaller device has none to spare
TILE = 128  # rows and columns of a tile


@contextmanager
def with_room(left: Tensor, right: Tensor) -> Iterator[None]:
    """Let this thread's product of these matrices by cuBLAS leave `NUM_FREE` multiprocessors free, if it is large.

    A product with a bias is cuBLASLt's: see `with_room_beside_bias`.
    """
    undo = None
    if _is_large(left, right):
        count = torch.cuda.get_device_properties(left.device).multi_processor_count
        undo = cuda_private.limit_cublas(count - NUM_FREE)
    try:
        yield
    finally:
        if undo is not None:
            undo()


@contextmanager
def with_room_beside_bias(left: Tensor, right: Tensor) -> Iterator[None]:
    """As `with_room`, for a product by cuBLASLt, to which a bias is added."""
    undo = cuda_private.leave_multiprocessors_free(NUM_FREE) if _is_large(left, right) else None
    try:
        yield
    finally:
        if undo is not None:
            undo()


def _is_large(left: Tensor, right: Tensor) -> bool:
    """True if the product has more tiles than multiprocessors, on the device whose handle this thread has."""
    if torch.compiler.is_compiling() or not left.is_cuda or left.device.index != torch.cuda.current_device():
        return False
    count = torch.cuda.get_device_properties(left.device).multi_processor_count
    return bool(-(-left.shape[0] // TILE) * -(-right.shape[1] // TILE) > count >= MIN_MULTIPROCESSORS)
