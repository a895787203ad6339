"""GPU utilisation and memory through NVML, if it is there. Absent is not an error: it is said once."""

from collections.abc import Collection
from typing import Any

from eyas.serve.facts.evidence import GpuFacts


class GpuCounters:
    """Reads all GPUs; `missing` says why there is nothing to read, once there was an attempt."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._tried = False
        self.missing = ""

    def read(self, pids: Collection[int] | None = None) -> tuple[GpuFacts, ...] | None:
        """All GPUs now; None without NVML. `pids`: the server's processes, to tell whose GPUs they are.

        In a container NVML may not name processes: then no GPU is marked as the server's own.
        """
        nvml = self._open()
        if nvml is None:
            return None
        try:
            return tuple(self._one(nvml, index, pids) for index in range(nvml.nvmlDeviceGetCount()))
        except nvml.NVMLError as error:
            self.missing = f"GPU counters: {error}"
            return None

    def _one(self, nvml: Any, index: int, pids: Collection[int] | None) -> GpuFacts:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        users = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        return GpuFacts(
            index=index,
            utilisation=int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            used_bytes=int(memory.used),
            total_bytes=int(memory.total),
            is_mine=pids is None or not users or bool(users & set(pids)),
        )

    def _open(self) -> Any:
        if self._tried:
            return self._nvml
        self._tried = True
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
        except ImportError:
            self.missing = "no GPU counters: nvidia-ml-py is not installed"
        except Exception as error:  # noqa: BLE001 - NVML's own error classes exist only where NVML does
            self.missing = f"no GPU counters: {error}"
        return self._nvml
