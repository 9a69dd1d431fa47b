"""Planning a batch in a few kernels whose every number is on the device, so that a CUDA graph can hold them.

What they compute is defined by `cache.planner` and `cache.policies`, operation by operation; that is their reference.
"""
