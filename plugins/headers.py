"""Find the headers that the library is compiled against and print their folders, separated by `;`.

    python headers.py --into FOLDER [--sdk TENSORRT]

TensorRT's come from an SDK if one is named, else from the wheel `kernel-lens`, which ships them: from an installed
one, or downloaded into FOLDER without its dependencies. Only its headers are used. CUDA's come from triton's wheel.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

WHEEL = "kernel-lens==2.0.1"  # TensorRT 10.14; plugins built with them load in TensorRT 10, 11 and TensorRT-RTX 1.7
HEADER = "NvInferRuntime.h"


def package_folder(name: str) -> Path | None:
    """Where a package is installed, without importing it."""
    spec = importlib.util.find_spec(name)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def sdk_headers(sdk: Path) -> Path:
    """The include folder of an SDK or of a system installation."""
    for folder in (sdk / "include", *sorted((sdk / "include").glob("*-linux-gnu")), sdk):
        if (folder / HEADER).exists():
            return folder
    raise SystemExit(f"headers.py: no {HEADER} in {sdk}. It is not a TensorRT SDK. Name one, or leave it out.")


def wheel_headers(into: Path) -> Path:
    """The headers of the wheel, installed or downloaded."""
    installed = package_folder("kernel_lens")
    if installed and (installed / "include" / "tensorrt" / HEADER).exists():
        return installed / "include" / "tensorrt"
    folder = into / "kernel_lens" / "include" / "tensorrt"
    if (folder / HEADER).exists():
        return folder
    into.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), WHEEL]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise SystemExit(
            f"headers.py: TensorRT's headers are missing. No SDK was named and pip could not download {WHEEL}.\n"
            "Name an SDK with -D TENSORRT_ROOT=FOLDER, or install that wheel with pip install --no-deps."
        )
    with zipfile.ZipFile(next(into.glob("kernel_lens-*.whl"))) as wheel:
        wheel.extractall(into, [name for name in wheel.namelist() if "/include/tensorrt/" in name])
    return folder


def cuda_headers() -> Path:
    """The CUDA headers in triton's wheel."""
    triton = package_folder("triton")
    if triton is None:
        raise SystemExit(
            "headers.py: triton is missing. It compiles the kernels and ships CUDA's headers. pip install triton"
        )
    return triton / "backends" / "nvidia" / "include"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--sdk", default="")
    options = parser.parse_args()
    tensorrt = sdk_headers(Path(options.sdk)) if options.sdk else wheel_headers(options.into)
    print(f"{tensorrt};{cuda_headers()}")


if __name__ == "__main__":
    main()
