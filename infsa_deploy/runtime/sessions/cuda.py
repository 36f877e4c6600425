"""Device memory, pinned host memory, streams and graphs from the CUDA driver itself, with nothing installed but it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from infsa_deploy.engine import driver
from infsa_deploy.errors import HostError

STREAM_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
CAPTURE_MODE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
ALIGNMENT = 256


class Cuda:
    """The primary context of the first GPU, shared with PyTorch and the CUDA runtime in the same process.

    Raises:
        HostError: there is no driver or GPU, or a driver call fails; each later call raises it likewise.
    """

    def __init__(self) -> None:
        driver.require_gpu("running an engine")
        self._driver = ctypes.CDLL(driver.LIBRARY)
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.make_current()

    def make_current(self) -> None:
        """Make the context current in this thread."""
        self.call("cuCtxSetCurrent", self._context)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a driver function; HostError, with CUDA's own name of the error, unless it returns 0."""
        status = getattr(self._driver, function)(*arguments)
        if status:
            name = ctypes.c_char_p()
            self._driver.cuGetErrorName(status, ctypes.byref(name))
            fix = "take a smaller batch" if status == OUT_OF_MEMORY else "run infsa-deploy doctor"
            raise HostError(f"{function} failed.", f"CUDA error {status}, {(name.value or b'?').decode()}.", f"{fix}.")


class Stream:
    """A stream, and what runs on it."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self._handle = cuda, ctypes.c_void_p()
        cuda.call("cuStreamCreate", ctypes.byref(self._handle), STREAM_NON_BLOCKING)

    @property
    def handle(self) -> int:
        return int(self._handle.value or 0)

    def synchronize(self) -> None:
        self._cuda.call("cuStreamSynchronize", self._handle)

    def begin_capture(self) -> None:
        self._cuda.call("cuStreamBeginCapture_v2", self._handle, CAPTURE_MODE_RELAXED)

    def end_capture(self) -> Graph:
        graph = ctypes.c_void_p()
        self._cuda.call("cuStreamEndCapture", self._handle, ctypes.byref(graph))
        return Graph(self._cuda, graph)

    def close(self) -> None:
        self._cuda.call("cuStreamDestroy_v2", self._handle)


class Graph:
    """Work captured on a stream, to be launched again as a whole."""

    def __init__(self, cuda: Cuda, graph: ctypes.c_void_p) -> None:
        self._cuda, self._executable = cuda, ctypes.c_void_p()
        cuda.call("cuGraphInstantiateWithFlags", ctypes.byref(self._executable), graph, ctypes.c_ulonglong(0))
        cuda.call("cuGraphDestroy", graph)

    def launch(self, stream: Stream) -> None:
        self._cuda.call("cuGraphLaunch", self._executable, ctypes.c_void_p(stream.handle))

    def close(self) -> None:
        self._cuda.call("cuGraphExecDestroy", self._executable)


class MirroredBuffer:
    """Device memory and pinned host memory of the same size; copies run on a stream, in its order."""

    def __init__(self, cuda: Cuda, size: int) -> None:
        self._cuda = cuda
        self.size = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        self._device, self._host = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuMemAlloc_v2", ctypes.byref(self._device), ctypes.c_size_t(self.size))
        try:
            cuda.call("cuMemAllocHost_v2", ctypes.byref(self._host), ctypes.c_size_t(self.size))
        except HostError:
            cuda.call("cuMemFree_v2", self._device)
            raise

    @property
    def address(self) -> int:
        """Device address."""
        return int(self._device.value or 0)

    def view(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The start of the host memory as an array; it lives as long as this buffer."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        memory = (ctypes.c_char * (count * kind.itemsize)).from_address(int(self._host.value or 0))
        return np.frombuffer(memoryview(memory), kind, count).reshape(shape)

    def to_device(self, size: int, stream: Stream) -> None:
        handle = ctypes.c_void_p(stream.handle)
        self._cuda.call("cuMemcpyHtoDAsync_v2", self._device, self._host, ctypes.c_size_t(size), handle)

    def to_host(self, size: int, stream: Stream) -> None:
        handle = ctypes.c_void_p(stream.handle)
        self._cuda.call("cuMemcpyDtoHAsync_v2", self._host, self._device, ctypes.c_size_t(size), handle)

    def close(self) -> None:
        self._cuda.call("cuMemFree_v2", self._device)
        self._cuda.call("cuMemFreeHost", self._host)
