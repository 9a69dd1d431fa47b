"""Planning a batch in a few kernels whose numbers are all on the device, so that a CUDA graph can replay them.

The eager planner (`cache.planning.planner`) and the policies define what the kernels compute, operation by operation.
"""
