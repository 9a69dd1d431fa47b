"""Whether float32 matrices are multiplied in TF32."""

import torch


# it cannot look inside, but compiles anew when the precision changes
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def tf32_allowed() -> bool:
    """What is set for CUDA's matrix products."""
    # not allow_tf32, which raises where the precision was set by its newer name
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")
