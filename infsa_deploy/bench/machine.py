"""Which machine this is."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

from infsa_deploy.measurements import Machine
from infsa_deploy.runtime.cores import usable_cores

PACKAGES = ("torch", "onnxruntime", "onnxruntime-gpu", "openvino", "onnx", "tensorrt", "tensorrt-rtx-cu13", "zeus")


def this_machine() -> Machine:
    """Processor, cores that this process may use, memory, GPUs as the driver's own tool names them, and versions."""
    return Machine(
        processor=_processor(),
        cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        platform=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        gpus=_gpus(),
        packages={name: version for name in PACKAGES if (version := _version(name))},
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.M)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _gpus() -> tuple[str, ...]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in listed.splitlines() if line.strip())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
