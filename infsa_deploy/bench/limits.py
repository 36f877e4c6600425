"""The limit of this machine: large products and a large copy, measured."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from infsa_deploy.records.bench import Ceilings, Settings

# Side of a product and bytes of a copy: far above overheads and caches, below a second on two cores.
SIZES = {"cpu": (3072, 512 << 20), "cuda": (8192, 2 << 30)}
QUICK_SIZES = {"cpu": (512, 16 << 20), "cuda": SIZES["cuda"]}  # a second; a GPU needs no more for large ones
REPEATS = 5
Product = Callable[[], Any]


def measure_ceilings(run: str, settings: Settings) -> Ceilings:
    """Time large products in each type by every library here, of which the fastest counts, and a large copy."""
    import torch

    threads, device = settings.threads, settings.device
    torch.set_num_threads(threads)
    side, size = (QUICK_SIZES if settings.quick else SIZES)[device]
    rates: dict[str, float] = {}
    method: dict[str, str] = {}
    for kind, library, product in products(side, threads, device):
        rate = 2 * side**3 / _fastest(product)
        if rate > rates.get(kind, 0.0):
            rates[kind], method[kind] = rate, f"{side} x {side} x {side} product by {library}"
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    rate = 2 * size / _fastest(lambda: _finished(target.copy_(source)))
    method["copy"] = f"copy of {size >> 20} MiB by PyTorch, read and written"
    return Ceilings(run, rates, rate, method)


def products(side: int, threads: int, device: str) -> Iterator[tuple[str, str, Product]]:
    """Yield type, library and a call that multiplies two matrices, for every library that is installed."""
    import torch

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if device == "cpu":
        del dtypes["fp16"]  # no CPU product in fp16 worth the name: nothing here runs in it by default
    for kind, dtype in dtypes.items():
        left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        yield kind, "PyTorch", lambda left=left, right=right: _finished(left @ right)  # type: ignore[misc]
    if device == "cpu" and find_spec("onnxruntime"):
        yield "fp32", "ONNX Runtime", _ort_product(side, threads, "MatMul")
        yield "int8", "ONNX Runtime", _ort_product(side, threads, "MatMulInteger")
    if device == "cpu" and find_spec("openvino"):
        for kind in ("fp32", "bf16"):
            yield kind, "OpenVINO", _openvino_product(side, threads, kind)


def _ort_product(side: int, threads: int, op_type: str) -> Product:
    import onnxruntime

    content, left = product_model(side, op_type)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"a": left})


def _openvino_product(side: int, threads: int, kind: str) -> Product:
    from infsa_deploy.runtime.sessions.openvino import compile_for_cpu

    content, left = product_model(side, "MatMul")
    request = compile_for_cpu(content, kind, threads).create_infer_request()
    return lambda: request.infer({"a": left}, share_inputs=True)


def product_model(side: int, op_type: str) -> tuple[bytes, Any]:
    """Make an ONNX file of `a` times a constant `b`, and a value for `a`."""
    import numpy as np
    import onnx

    integer = op_type == "MatMulInteger"
    types = ("uint8", "int8", "int32") if integer else ("float", "float", "float")
    text = f"({types[0]}[{side},{side}] a) => ({types[2]}[{side},{side}] y) {{ y = {op_type}(a, b) }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> product {text}')
    generator = np.random.default_rng(0)
    values = generator.integers(0, 100, (2, side, side)) if integer else generator.standard_normal((2, side, side))
    left, right = (value.astype(kind.replace("float", "float32")) for value, kind in zip(values, types, strict=False))
    model.graph.initializer.append(onnx.numpy_helper.from_array(right, "b"))
    return model.SerializeToString(), left


def _finished(result: Any) -> Any:
    """A tensor whose computation is done."""
    if result.is_cuda:
        import torch

        torch.cuda.synchronize()
    return result


def _fastest(call: Product) -> float:
    """Seconds of the fastest of a few calls, after one that does not count: a ceiling is the best, not the usual."""
    call()
    return min(timeit.repeat(call, number=1, repeat=REPEATS))
