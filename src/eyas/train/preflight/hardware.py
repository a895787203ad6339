"""What this machine has: the peak rate of its GPU, and the memory that this process uses."""

import resource

import psutil
import torch

# Dense bf16 products, from the makers' data sheets: a figure to divide by.
# Substring of the device's name -> TFLOP/s, bf16 or fp16 with fp32 sums, no sparsity. The first that fits counts.
_TFLOPS = (
    ("B300", 2500.0),
    ("GB200", 2500.0),
    ("B200", 2250.0),
    ("H200", 989.4),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.4),
    ("H800", 989.4),
    ("H20", 148.0),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("L4", 121.0),
    ("RTX 6000 Ada", 364.0),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("A40", 149.7),
    ("A10", 125.0),
    ("MI300X", 1307.0),
)


def peak_flops(device_name: str) -> float | None:
    """FLOP/s of the device of this name (`torch.cuda.get_device_name`), or None."""
    return next((tflops * 1e12 for part, tflops in _TFLOPS if part in device_name), None)


def peak_memory_bytes(device: torch.device) -> int:
    """Peak so far: allocated by torch on this GPU, or resident memory of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return max(resident_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)  # the kernel counts it late


def resident_bytes() -> int:
    """Memory of this process now, libraries included."""
    return int(psutil.Process().memory_info().rss)
