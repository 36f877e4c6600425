"""Classes that implement every pure virtual function of TensorRT's own, each ending the process.

TensorRT's implementation classes have some fifty functions each, and a stand-in defines the few that are called. The
rest are read from the headers, so that they are those of whichever version is compiled against.
"""

from __future__ import annotations

import re
from pathlib import Path

CLASSES = {
    "StubRuntime": ("NvInferImpl.h", "VRuntime", "nvinfer1::apiv::VRuntime"),
    "StubCudaEngine": ("NvInferImpl.h", "VCudaEngine", "nvinfer1::apiv::VCudaEngine"),
    "StubExecutionContext": ("NvInferImpl.h", "VExecutionContext", "nvinfer1::apiv::VExecutionContext"),
    "StubPluginRegistry": ("NvInferRuntimeCommon.h", "IPluginRegistry", "nvinfer1::IPluginRegistry"),
}
PURE = re.compile(r"virtual\s+([^;{}]+?)\s*=\s*0;")


def write_stubs(headers: Path, target: Path) -> None:
    """Write the classes to `target`, from the headers in the folder `headers`."""
    lines = ["#include <NvInferRuntime.h>", "#include <cstdlib>", "using namespace nvinfer1;"]
    for name, (header, base, qualified) in CLASSES.items():
        text = (headers / header).read_text()
        body = re.search(rf"\nclass {base}\b[^;]*?\n{{(.*?)\n}};", text, re.S)
        assert body, f"{header} has no class {base}"
        functions = PURE.findall(re.sub(r"//[^\n]*|/\*.*?\*/", "", body[1], flags=re.S))
        assert functions, f"{base} has no pure virtual function"
        lines += [f"struct {name} : {qualified} {{"]
        lines += [f"    {' '.join(function.split())} {{ std::abort(); }}" for function in functions]
        lines += ["};"]
    target.write_text("\n".join(lines) + "\n")
