"""The plugin library driven from Python: a C++ harness, and a driver that is a GPU's or the stand-in.

Loading the stand-in makes it the process's libcuda.so.1 for good, so tests use this module in a process of its own.
"""

from __future__ import annotations

import ctypes as C
import hashlib
import json
import struct
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 7}  # nvinfer1::DataType
INT32, FLOAT32 = 5, 1  # nvinfer1::PluginFieldType


class Tensor(C.Structure):
    _fields_ = (
        ("rank", C.c_int32),
        ("dims", C.c_int64 * 4),
        ("largest", C.c_int64 * 4),
        ("bytes", C.c_int64),
        ("host", C.c_void_p),
    )


class Harness:
    """The plugin library, opened."""

    def __init__(self, harness: Path, plugins: Path) -> None:
        self.native = C.CDLL(str(harness))
        for name in ("harnessCreate", "harnessAttach", "harnessRevive", "harnessClone"):
            getattr(self.native, name).restype = C.c_void_p
        for name in ("harnessOpen", "harnessMessages", "harnessCreators"):
            getattr(self.native, name).restype = C.c_char_p
        self.native.harnessConfigure.restype = C.c_int64
        error = self.native.harnessOpen(str(plugins).encode())
        if error:
            raise RuntimeError(error.decode())

    def messages(self) -> str:
        return self.native.harnessMessages().decode()

    def creators(self) -> dict[str, tuple[str, str, dict[str, int]]]:
        """Name to version, namespace and the kind of each field."""
        found = {}
        for line in self.native.harnessCreators().decode().splitlines():
            name, version, namespace, *fields = line.split()
            found[name] = version, namespace, {k: int(v) for k, v in (field.split(":") for field in fields)}
        return found

    def create(self, op: str, fields: Mapping[str, Any], lengths: Mapping[str, int] | None = None) -> Plugin | None:
        """A plugin of `op`, or None when the creator refuses; int fields go as int32, float ones as float32."""
        boxes = [C.c_int32(v) if isinstance(v, int) else C.c_float(v) for v in fields.values()]
        count = len(boxes)
        address = self.native.harnessCreate(
            op.encode(),
            count,
            (C.c_char_p * count)(*(name.encode() for name in fields)),
            (C.c_int * count)(*(INT32 if isinstance(v, int) else FLOAT32 for v in fields.values())),
            (C.c_int * count)(*((lengths or {}).get(name, 1) for name in fields)),
            (C.c_void_p * count)(*(C.addressof(box) for box in boxes)),
        )
        return Plugin(self, address) if address else None


class Plugin:
    """One plugin object; `close` destroys it."""

    def __init__(self, harness: Harness, address: int) -> None:
        self.harness, self.native, self.address = harness, harness.native, C.c_void_p(address)

    def close(self) -> None:
        self.native.harnessDestroy(self.address)

    def attach(self) -> Plugin:
        return Plugin(self.harness, self.native.harnessAttach(self.address))

    def revive(self) -> Plugin:
        return Plugin(self.harness, self.native.harnessRevive(self.address))

    def clone(self) -> Plugin:
        return Plugin(self.harness, self.native.harnessClone(self.address))

    def tell(self, dtype: torch.dtype, inputs: int, outputs: int) -> int:
        """Tell the type of the node's inputs; 0 where that is the outputs' too."""
        return self.native.harnessTell(self.address, TYPES[dtype], inputs, outputs)

    def misaligned(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], position: int) -> int:
        """The code of an enqueue in which one address of inputs, outputs and workspace is no multiple of 16."""
        array = self._tensors([*inputs, *outputs])
        kind = TYPES[inputs[0].dtype]
        return self.native.harnessMisaligned(self.address, kind, array, len(inputs), len(outputs), position)

    def outputs(self) -> int:
        return self.native.harnessOutputs(self.address)

    @staticmethod
    def _tensors(tensors: Sequence[torch.Tensor], largest: Sequence[Sequence[int]] | None = None) -> Any:
        array = (Tensor * len(tensors))()
        for i, (slot, tensor) in enumerate(zip(array, tensors, strict=True)):
            slot.rank = tensor.dim()
            slot.dims[: tensor.dim()] = list(tensor.shape)
            slot.largest[: tensor.dim()] = list(largest[i] if largest else tensor.shape)
            slot.bytes = tensor.numel() * tensor.element_size()
            slot.host = tensor.data_ptr()
        return array

    def offered(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], position: int) -> int:
        array = self._tensors([*inputs, *outputs])
        kind = TYPES[inputs[0].dtype]
        return self.native.harnessOffered(self.address, kind, array, len(inputs), len(outputs), position)

    def configure(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        largest: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """Bytes of workspace, or a negative code."""
        array = self._tensors([*inputs, *outputs], largest)
        return self.native.harnessConfigure(self.address, TYPES[inputs[0].dtype], array, len(inputs), len(outputs))

    def enqueue(
        self, inputs: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]], workspace: int
    ) -> tuple[int, list[torch.Tensor]]:
        """The code of enqueue (or of what the harness found wrong) and the outputs."""
        outputs = [torch.empty(*shape, dtype=inputs[0].dtype) for shape in shapes]
        array = self._tensors([*inputs, *outputs])
        code = self.native.harnessEnqueue(
            self.address, TYPES[inputs[0].dtype], array, len(inputs), len(outputs), C.c_int64(workspace)
        )
        return code, outputs


LAUNCH = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_char_p, C.c_uint, C.c_uint, C.c_uint, C.POINTER(C.c_void_p))
SCALARS = {"i32": C.c_int32, "fp32": C.c_float}


def code_bytes(address: int) -> bytes:
    """The code at an address: PTX ends with a zero byte, an ELF file with its section or its program headers."""
    header = C.string_at(address, 64)
    if not header.startswith(b"\x7fELF"):
        return C.string_at(address) + b"\0"
    program, section = struct.unpack_from("<QQ", header, 32)
    program_size, programs, section_size, sections = struct.unpack_from("<HHHH", header, 54)
    size = max(program + program_size * programs, section + section_size * sections)
    return C.string_at(address, size)


class StandIn:
    """The stand-in driver, loaded, whose launches run in Triton's interpreter."""

    def __init__(self, driver: Path, table: Path, run: Callable[..., None]) -> None:
        self.native = C.CDLL(str(driver), mode=C.RTLD_GLOBAL)
        self.entries = {entry["sha256"]: entry for entry in json.loads(table.read_text())}
        self.run = run
        self.forget()
        self.lock = threading.Lock()  # the interpreter keeps its grid position in one global
        self.callback = LAUNCH(self._launch)
        self.reset()

    def forget(self) -> None:
        """Start the record of launches anew."""
        self.launches: list[tuple[str, int]] = []
        self.sms: set[int] = set()
        self.error = ""

    def reset(self, sm: int = 80, multiprocessors: int = 3) -> None:
        self.native.standInReset(self.callback, sm, multiprocessors)

    def fail(self, call: str = "", at: int = 1) -> None:
        """Make the at-th call of a driver function from now on fail; without a name, none."""
        self.native.standInFail(call.encode(), at)

    def calls(self, name: str) -> int:
        return self.native.standInCalls(name.encode())

    def alive(self) -> int:
        """Modules loaded and buffers allocated."""
        return self.native.standInAlive()

    def context(self, index: int) -> None:
        self.native.standInContext(index)

    def _launch(self, image: int, symbol: bytes, blocks: int, threads: int, shared: int, arguments: Any) -> int:
        try:
            with self.lock:
                self._checked_launch(image, symbol.decode(), blocks, threads, shared, arguments)
        except BaseException:
            self.error = traceback.format_exc()
            return 719  # CUDA_ERROR_LAUNCH_FAILED
        return 0

    def _checked_launch(self, image: int, symbol: str, blocks: int, threads: int, shared: int, arguments: Any) -> None:
        entry = self.entries[hashlib.sha256(code_bytes(image)).hexdigest()]
        assert (symbol, threads, shared) == (entry["symbol"], entry["threads"], entry["shared"])
        values: dict[str, tuple[str, Any]] = {}
        for i, (name, kind) in enumerate(entry["arguments"].items()):
            value = C.cast(arguments[i], C.POINTER(SCALARS.get(kind, C.c_uint64)))[0]
            promise = entry["promises"].get(name)
            assert not promise or value % promise == 0, f"{symbol}: {name} = {value} breaks its promise"
            values[name] = kind, value
        for i in (0, 1):  # global and profiling scratch
            assert C.cast(arguments[len(values) + i], C.POINTER(C.c_uint64))[0] == 0
        self.launches.append((symbol, blocks))
        self.sms.add(entry["sm"])
        self.run(entry, blocks, values)
