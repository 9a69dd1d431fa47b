"""`hotrows doctor`: the hardware and packages of this machine, and which of them hotrows will use."""

import importlib.metadata
import os
import platform
import shutil
from typing import Any

import torch

import hotrows
from hotrows.stores.memory_checks import available_host_memory, readable

PACKAGES = ("torch", "triton", "numpy", "pyarrow", "ibis-framework", "duckdb", "pyspark", "torchmetrics", "tensorboard")


def examine() -> dict[str, Any]:
    devices = [
        {
            "name": torch.cuda.get_device_name(i),
            "memory": torch.cuda.get_device_properties(i).total_memory,
            "free": torch.cuda.mem_get_info(i)[0],
        }
        for i in range(torch.cuda.device_count())
    ]
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "hotrows": hotrows.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "host_memory": available_host_memory(),
        "cuda": devices,
        "java": shutil.which("java") is not None,
        "packages": versions,
        "uses": {
            "device": "cuda" if devices else "cpu",
            "kernels": "Triton" if devices else "plain PyTorch",
            "moves": "kernels on a CUDA stream, zero copy" if devices else "a worker thread",
            "prepare": [name for name, found in _engines(versions).items() if found],
        },
    }


def show(found: dict[str, Any]) -> None:
    from rich.console import Console

    print_line = Console(highlight=False).print
    print_line(f"[bold]hotrows {found['hotrows']}[/bold], Python {found['python']}, {found['cores']} cores")
    memory = found["host_memory"]
    print_line(f"host memory available for rows: {'unknown' if memory is None else readable(memory)}")
    for device in found["cuda"]:
        print_line(f"GPU: {device['name']}, {readable(device['free'])} of {readable(device['memory'])} free")
    if not found["cuda"]:
        print_line("GPU: PyTorch sees none; everything runs on the CPU, with the same results")
    uses = found["uses"]
    print_line(f"will use: {uses['device']}, {uses['kernels']}, moves by {uses['moves']}")
    print_line(f"prepare can run on: {', '.join(uses['prepare']) or 'nothing (install ibis-framework[duckdb])'}")
    for name, version in found["packages"].items():
        print_line(f"  {name:16} {version or '[yellow]not installed[/yellow]'}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _engines(versions: dict[str, str | None]) -> dict[str, bool]:
    ibis = versions["ibis-framework"] is not None
    return {
        "duckdb": ibis and versions["duckdb"] is not None,
        "spark": ibis and versions["pyspark"] is not None and shutil.which("java") is not None,
    }
