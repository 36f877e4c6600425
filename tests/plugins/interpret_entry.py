"""Run an ahead-of-time entry in the interpreter, on raw addresses and values as a driver gets them."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import GridExecutor, TensorHandle

from tests.plugins import exact_interpreter
from tests.plugins.launch import KERNELS

NUMPY = {"i32": np.int32, "fp32": np.float32}


class RawExecutor(GridExecutor):
    """The interpreter's grid loop, on arguments that are interpreter values already."""

    def _init_args_hst(self, args_dev: Any, kwargs: Any) -> Any:
        return args_dev, kwargs

    def _restore_args_dev(self, args_dev: Any, args_hst: Any, kwargs: Any, kwargs_hst: Any) -> None:
        pass


def run(entry: dict[str, Any], blocks: int, values: dict[str, tuple[str, Any]]) -> None:
    exact_interpreter.install()
    function = KERNELS[entry["kernel"]].function
    arguments = {}
    for name, (kind, value) in values.items():
        ty = tl.str_to_ty(kind, None)
        arguments[name] = tl.tensor(TensorHandle(np.array([value], NUMPY.get(kind, np.uint64)), ty), ty)
    RawExecutor(function.rewrite(), function.arg_names, (blocks,))(**arguments, **entry["constants"])
