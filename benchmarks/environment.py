"""The hardware, versions and commit of a benchmark, and the file of its results."""

import argparse
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import hotrows
from hotrows.json_text import json_text


def describe(device: str = "cpu") -> dict[str, Any]:
    """The hardware, versions and commit of this run."""
    return {
        "hardware": hardware(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hotrows": hotrows.__version__,
        "num_threads": torch.get_num_threads(),
        "commit": commit(),
    }


def checked_device(parser: argparse.ArgumentParser, name: str) -> torch.device:
    """The device that was given as --device. Ends the program if there is none."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {name}: PyTorch sees no CUDA device here, use --device cpu")
    return torch.device(name)


def hardware(device: str) -> str:
    cpu = f"{_cpu_name()}, {os.cpu_count()} cores"
    return f"{torch.cuda.get_device_name(device)} ({cpu})" if device.startswith("cuda") else cpu


def commit() -> str:
    """The commit of the working tree, marked as dirty if files differ from it.

    A copy of a working tree takes it from the variable HOTROWS_COMMIT.
    """
    if "HOTROWS_COMMIT" in os.environ:
        return os.environ["HOTROWS_COMMIT"]
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def write_json(path: Path, environment: dict[str, Any], results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json_text({"environment": environment, **results}, indent=2) + "\n")
    print(f"\nwritten: {path}")


def print_heading(question: str, environment: dict[str, Any]) -> None:
    print(question)
    print(
        f"{environment['hardware']}, Python {environment['python']}, torch {environment['torch']}, "
        f"{environment['num_threads']} thread(s), commit {environment['commit']}\n"
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
