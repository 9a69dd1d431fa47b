"""The memory that is available on the host and on a device, checked before anything large is allocated."""

from pathlib import Path

import torch

from hotrows.errors import OutOfMemoryError


def readable(num_bytes: float) -> str:
    """A number of bytes as text, such as 17.3 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def available_host_memory() -> int | None:
    """Bytes that this process can still allocate, within the machine and its container; None if unknown."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            cached = sum(
                int(line.split()[1])
                for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
                if line.startswith(("inactive_file ", "active_file "))
            )
            found.append(int(limit) - used + cached)
    except (OSError, ValueError, IndexError):
        pass  # This is not Linux or not a container; the limits found so far are all there are.
    return min(found, default=None)


def available_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_host_memory()


def require_memory(what: str, num_bytes: int, available: int | None, where: str, advice: str) -> None:
    """Raise before an allocation that cannot succeed."""
    if available is not None and num_bytes > available:
        raise OutOfMemoryError(
            f"{what} need {readable(num_bytes)} of {where}, and {readable(available)} are available: {advice}"
        )
