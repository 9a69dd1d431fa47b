"""Every kernel compiles for a GPU, on a machine without one."""

import os
import subprocess
import sys
from pathlib import Path

import hotrows.dense
import hotrows.ops

SCRIPT = Path(__file__).parent / "compile_for_gpu.py"


def test_every_kernel_compiles_for_a_gpu() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    modules = {name.split(".")[-3] for name in done.stdout.split()}
    folders = (hotrows.ops, hotrows.dense)
    with_kernels = {path.parent.name for folder in folders for path in Path(folder.__path__[0]).glob("*/kernel.py")}
    assert modules | {"segment_sum"} == with_kernels, "segment_sum launches the kernels of backward_update"
