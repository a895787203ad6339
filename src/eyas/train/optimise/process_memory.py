"""Memory of this process: now, and the most that it has been."""

import resource
from pathlib import Path

import torch


def peak_memory_bytes(device: torch.device) -> int:
    """Largest so far: allocated by torch on this GPU, or resident of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    """Resident now, libraries included; the peak so far where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return peak_memory_bytes(torch.device("cpu"))
    return pages * resource.getpagesize()
