"""What this machine has of what the commands need."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
from collections.abc import Callable, Iterator

from infsa_deploy.records.model import CheckResult
from infsa_deploy.version import __version__

# package -> (commands that need it, extra that brings it)
PACKAGES = {
    "torch": ("export, validate", "export"),
    "onnx": ("export, inspect", "export"),
    "onnx-ir": ("export, inspect", "export"),
    "onnxscript": ("export", "export"),
    "safetensors": ("export, validate", "export"),
    "scikit-learn": ("evaluate --attention", "evaluate"),
    "matplotlib": ("evaluate -o, explain, report", "plot"),
    "zeus": ("bench, for energy", "energy"),
    "tritonclient": ("package", "serve"),
    "openvino": ("run --provider openvino, and bench as a peer", "peers"),
}
ORT_PACKAGES = ("onnxruntime", "onnxruntime-gpu")
TENSORRT_PACKAGES = {
    "TensorRT": ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"),
    "TensorRT-RTX": ("tensorrt-rtx", "tensorrt-rtx-cu12", "tensorrt-rtx-cu13"),
}
CUDA_NAME_LENGTH = 128


def examine() -> list[CheckResult]:
    """Run every check; none of them raises, and none loads a GPU library but the driver itself."""
    return [result for check in CHECKS for result in check()]


def _tool() -> Iterator[CheckResult]:
    yield CheckResult("infsa-deploy", "ok", f"{__version__}, Python {platform.python_version()}, {platform.machine()}")


def _packages() -> Iterator[CheckResult]:
    for package, (commands, extra) in PACKAGES.items():
        version = _version(package)
        if version:
            yield CheckResult(package, "ok", version)
        else:
            yield CheckResult(package, "absent", f"needed by {commands}", f"pip install 'infsa-deploy[{extra}]'")


def _onnxruntime() -> Iterator[CheckResult]:
    found = {name: version for name in ORT_PACKAGES if (version := _version(name))}
    if not found:
        yield CheckResult("onnxruntime", "absent", "needed by run, validate", "pip install 'infsa-deploy[cpu]'")
        return
    listed = ", ".join(f"{name} {version}" for name, version in found.items())
    if len(found) == 2:
        fix = "pip uninstall -y onnxruntime onnxruntime-gpu; then install the one you want"
        yield CheckResult("onnxruntime", "problem", f"{listed}: they overwrite each other's files", fix)
        return
    try:
        import onnxruntime

        yield CheckResult("onnxruntime", "ok", f"{listed}: {', '.join(onnxruntime.get_available_providers())}")
    except Exception as error:  # a damaged install fails in many ways
        yield CheckResult("onnxruntime", "problem", f"{listed} does not import: {error}", f"reinstall {listed}")


def _tensorrt() -> Iterator[CheckResult]:
    for flavour, packages in TENSORRT_PACKAGES.items():
        found = [f"{name} {version}" for name in packages if (version := _version(name))]
        extra = "rtx" if "RTX" in flavour else "gpu"
        if found:
            yield CheckResult(flavour, "ok", ", ".join(found))
        else:
            yield CheckResult(flavour, "absent", "needed to build engines", f"pip install 'infsa-deploy[{extra}]'")


def _driver() -> Iterator[CheckResult]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        yield CheckResult("NVIDIA driver", "absent", "needed to run engines", "install the NVIDIA driver")
        return
    version, count = ctypes.c_int(), ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDriverGetVersion(ctypes.byref(version))
    if status:
        yield CheckResult("NVIDIA driver", "problem", f"cuInit fails with CUDA error {status}", "check nvidia-smi")
        return
    yield CheckResult("NVIDIA driver", "ok", f"CUDA {version.value // 1000}.{version.value % 1000 // 10}")
    driver.cuDeviceGetCount(ctypes.byref(count))
    for index in range(count.value):
        yield CheckResult(f"GPU {index}", "ok", _gpu_name(driver, index))


def _gpu_name(driver: ctypes.CDLL, index: int) -> str:
    name, major, minor = ctypes.create_string_buffer(CUDA_NAME_LENGTH), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetName(name, CUDA_NAME_LENGTH, index)
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, index)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, index)  # ..._MINOR
    return f"{name.value.decode()}, SM {major.value}.{minor.value}"


def _plugins() -> Iterator[CheckResult]:
    try:
        import infsa_plugins

        library = infsa_plugins.library_path()
        ctypes.CDLL(str(library))
        yield CheckResult("plugin library", "ok", str(library))
    except ImportError:
        yield CheckResult("plugin library", "absent", "needed for engines with plugins", "install a build with plugins")
    except OSError as error:
        yield CheckResult("plugin library", "problem", f"it does not load: {error}", "install infsa-deploy again")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


CHECKS: tuple[Callable[[], Iterator[CheckResult]], ...] = (
    _tool,
    _packages,
    _onnxruntime,
    _tensorrt,
    _driver,
    _plugins,
)
