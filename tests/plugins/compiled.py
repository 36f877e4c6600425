"""The machine code that the plugin library embeds, launched through the CUDA driver for tensors of PyTorch."""

from __future__ import annotations

import ctypes as C
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.plugins.harness import SCALARS

MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
DEFAULT_SHARED_BYTES = 48 * 1024
SCRATCH_POINTERS = 2  # that Triton appends to a kernel's own parameters


class CompiledKernels:
    """The kernels of one SM out of a table that `plugins/aot.py` wrote, with their code in `folder`.

    Raises:
        RuntimeError: a call of the driver fails; the text has the call and its code.
    """

    def __init__(self, table: Path, folder: Path) -> None:
        torch.cuda.init()
        torch.cuda.current_stream().synchronize()  # the driver calls below need PyTorch's context to be current
        entries = json.loads(table.read_text())
        self._entries = {(entry["kernel"], entry["dtype"], entry["limit"]): entry for entry in entries}
        self._folder, self._driver = folder, C.CDLL("libcuda.so.1")
        self._functions: dict[str, tuple[C.c_void_p, bytes]] = {}

    def launch(self, name: str, dtype: str, limit: int, grid: int, arguments: Sequence[Any]) -> None:
        """Launch a variant on the current stream; tensors go as pointers, numbers as the table types them."""
        entry = self._entries[name, dtype, limit]
        values: list[Any] = []
        for kind, argument in zip(entry["arguments"].values(), arguments, strict=True):
            pointer = isinstance(argument, torch.Tensor)
            values.append(C.c_uint64(argument.data_ptr()) if pointer else SCALARS[kind](argument))
        values += [C.c_uint64(0)] * SCRATCH_POINTERS
        addresses = (C.c_void_p * len(values))(*(C.addressof(value) for value in values))
        stream = C.c_void_p(torch.cuda.current_stream().cuda_stream)
        blocks, threads = (grid, 1, 1), (entry["threads"], 1, 1)
        self._call(
            "cuLaunchKernel", self._function(entry), *blocks, *threads, entry["shared"], stream, addresses, C.c_void_p()
        )

    def _function(self, entry: dict[str, Any]) -> C.c_void_p:
        key = entry["sha256"]
        if key not in self._functions:
            module, function = C.c_void_p(), C.c_void_p()
            code = (self._folder / Path(entry["code"]).name).read_bytes()
            self._call("cuModuleLoadData", C.byref(module), code)
            self._call("cuModuleGetFunction", C.byref(function), module, entry["symbol"].encode())
            if entry["shared"] > DEFAULT_SHARED_BYTES:
                self._call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE_BYTES, entry["shared"])
            self._functions[key] = function, code  # a driver may go on reading the code
        return self._functions[key][0]

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._driver, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {code}")
