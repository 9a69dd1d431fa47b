"""The precision in which float32 matrices are multiplied."""

import torch


# torch.compile cannot trace this call, but it compiles again if the precision changes.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def tf32_allowed() -> bool:
    """True if TF32 is set for CUDA's matrix products."""
    # allow_tf32 would raise if the precision was set by its newer name.
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")
