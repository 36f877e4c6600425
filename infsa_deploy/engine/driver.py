"""The GPU of this machine, asked of the driver itself, so that nothing else need be installed or loaded."""

from __future__ import annotations

import ctypes

from infsa_deploy.errors import HostError
from infsa_deploy.records.engine import Gpu

LIBRARY = "libcuda.so.1"
NAME_LENGTH = 128
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76  # CUdevice_attribute


def find_gpu() -> Gpu | None:
    """The first GPU the driver shows, or None where there is no driver or no GPU."""
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    memory, name = ctypes.c_size_t(), ctypes.create_string_buffer(NAME_LENGTH)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    driver.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), COMPUTE_CAPABILITY_MINOR, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    driver.cuDeviceGetName(name, NAME_LENGTH, device)
    return Gpu(name.value.decode(), f"sm{major.value}{minor.value}", memory.value)


def require_gpu(purpose: str) -> Gpu:
    """The first GPU; HostError, in one sentence, where there is none."""
    gpu = find_gpu()
    if gpu is None:
        raise HostError(
            f"{purpose} needs an NVIDIA GPU and its driver.",
            f"{LIBRARY} is not installed here, or shows no GPU.",
            "run it on the machine with the GPU; infsa-deploy doctor tells what is missing.",
        )
    return gpu
