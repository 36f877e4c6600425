"""The limit: what the device can do, measured in the run, and the least time that a call can then take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from infsa_deploy.bench.datasheets import datasheet
from infsa_deploy.measurements import Ceilings, Floor, Predicted, Work

# Side of a product and bytes of a copy: far above overheads and caches, below a second on two cores.
SIZES = {"cpu": (3072, 512 << 20), "cuda": (8192, 2 << 30)}
QUICK_SIZES = {"cpu": (512, 16 << 20), "cuda": SIZES["cuda"]}
REPEATS = 5


def floor(work: Work, ceilings: Ceilings, latency_ms: float) -> Floor | None:
    """The larger of products at the measured rates and bytes at the measured bandwidth; None without a rate.

    Bytes are those that cannot be avoided: weights, inputs and outputs, once.
    """
    limit = _limit(work, ceilings.flops_per_s, ceilings.bytes_per_s)
    return Floor(*limit, achieved_over_floor=latency_ms / limit[0]) if limit else None


def predict(work: Work, device: str) -> Predicted | None:
    """The same on a device of `datasheets`; None where it has no peak for a type of the work."""
    sheet = datasheet(device)
    limit = _limit(work, sheet.flops_per_s, sheet.bytes_per_s)
    return Predicted(device, *limit) if limit else None


def _limit(work: Work, flops_per_s: Mapping[str, float], bytes_per_s: float) -> tuple[float, str] | None:
    if not work.flops_by_type.keys() <= flops_per_s.keys():
        return None
    compute = 1000 * sum(flops / flops_per_s[kind] for kind, flops in work.flops_by_type.items())
    memory = 1000 * work.least_bytes / bytes_per_s
    return (compute, "compute") if compute >= memory else (memory, "memory")


def measure_ceilings(run: str, threads: int, device: str, *, quick: bool) -> Ceilings:
    """Large products in each type by every library here, the fastest counting, and a large copy.

    With `quick` they are small on a CPU: a rough idea, in a second. A GPU needs no more than that for large ones.
    """
    import torch

    torch.set_num_threads(threads)
    side, size = (QUICK_SIZES if quick else SIZES)[device]
    flops = 2 * side**3
    rates: dict[str, float] = {}
    method: dict[str, str] = {}
    for kind, library, product in _products(torch, side, threads, device):
        rate = flops / _fastest(product)
        if rate > rates.get(kind, 0.0):
            rates[kind], method[kind] = rate, f"{side} x {side} x {side} product by {library}"
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    rate = 2 * size / _fastest(lambda: _finished(torch, device, target.copy_(source)))
    method["copy"] = f"copy of {size >> 20} MiB by PyTorch, read and written"
    return Ceilings(run, rates, rate, method)


def _products(torch: Any, side: int, threads: int, device: str) -> list[tuple[str, str, Callable[[], Any]]]:
    products: list[tuple[str, str, Callable[[], Any]]] = []
    for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if device == "cpu" and kind == "fp16":
            continue  # no CPU product in fp16 worth the name: nothing here runs in it by default
        left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        products.append((kind, "PyTorch", lambda a=left, b=right: _finished(torch, device, a @ b)))  # type: ignore[misc]
    if device == "cpu":
        products += [("fp32", "ONNX Runtime", _ort_product(side, threads, "MatMul"))]
        products += [("int8", "ONNX Runtime", _ort_product(side, threads, "MatMulInteger"))]
        if find_spec("openvino"):
            products += [(kind, "OpenVINO", _openvino_product(side, threads, kind)) for kind in ("fp32", "bf16")]
    return products


def _ort_product(side: int, threads: int, op_type: str) -> Callable[[], Any]:
    import onnxruntime

    content, left = _product_model(side, op_type)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"a": left})


def _openvino_product(side: int, threads: int, kind: str) -> Callable[[], Any]:
    from infsa_deploy.runtime.openvino import compile_for_cpu

    content, left = _product_model(side, "MatMul")
    request = compile_for_cpu(content, kind, threads).create_infer_request()
    return lambda: request.infer({"a": left}, share_inputs=True)


def _product_model(side: int, op_type: str) -> tuple[bytes, Any]:
    """An ONNX file of `a` times a constant, and a value for `a`."""
    import numpy as np
    import onnx

    integer = op_type == "MatMulInteger"
    kinds = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8) if integer else (onnx.TensorProto.FLOAT,) * 2
    generator = np.random.default_rng(0)
    values = generator.integers(0, 100, (2, side, side)) if integer else generator.standard_normal((2, side, side))
    left, right = (values[i].astype(onnx.helper.tensor_dtype_to_np_dtype(kinds[i])) for i in range(2))
    result = onnx.TensorProto.INT32 if integer else onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, ["a", "b"], ["y"])],
        "product",
        [onnx.helper.make_tensor_value_info("a", kinds[0], [side, side])],
        [onnx.helper.make_tensor_value_info("y", result, [side, side])],
        [onnx.numpy_helper.from_array(right, "b")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    return model.SerializeToString(), left


def _finished(torch: Any, device: str, result: Any) -> Any:
    if device == "cuda":
        torch.cuda.synchronize()
    return result


def _fastest(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few calls, after one that does not count: a ceiling is the best, not the usual."""
    call()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
