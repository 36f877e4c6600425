"""Triton's interpreter with the arithmetic of the tensor cores.

The interpreter multiplies in float32 whatever `input_precision` says, reads bfloat16 operands as integers and
truncates float32 to bfloat16. Here a product rounds its operands as the hardware does, and casts round to nearest
even. A "tf32" operand is cut after 10 mantissa bits: the tensor core ignores the others.
"""

from __future__ import annotations

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("Set TRITON_INTERPRET=1 before the first import of triton: its own functions read it then.")

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, TensorHandle

if not isinstance(tl.sum, InterpretedFunction):
    raise RuntimeError("triton was imported before TRITON_INTERPRET=1 was set.")


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def bfloat16_parts(values: np.ndarray) -> list[np.ndarray]:
    """Three bfloat16 numbers, held in float32, that add up to a float32."""
    parts = []
    for _ in range(3):
        parts.append(bfloat16_to_float32(float32_to_bfloat16(values)))
        values = values - parts[-1]
    return parts


def cut_to_tf32(values: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def multiply(a: np.ndarray, b: np.ndarray, precision: ir.INPUT_PRECISION) -> np.ndarray:
    """The product of two float32 arrays whose operands the tensor core reads with the given precision."""
    if precision == ir.INPUT_PRECISION.TF32:
        return cut_to_tf32(a) @ cut_to_tf32(b)
    if precision != ir.INPUT_PRECISION.BF16x6:
        raise NotImplementedError(f"no exact arithmetic for {precision}")
    (a0, a1, a2), (b0, b1, b2) = bfloat16_parts(a), bfloat16_parts(b)
    return (a1 @ b1 + a2 @ b0 + a0 @ b2) + (a1 @ b0 + a0 @ b1) + a0 @ b0


class ExactBuilder:
    """The builder methods that replace the interpreter's own."""

    original_cast = interpreter.InterpreterBuilder.cast_impl
    original_fp_to_fp = interpreter.InterpreterBuilder.create_fp_to_fp

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        if a.dtype.scalar == tl.float32:
            product = multiply(a.data, b.data, input_precision)
        elif a.dtype.scalar == tl.bfloat16:
            product = bfloat16_to_float32(a.data) @ bfloat16_to_float32(b.data)
        else:
            product = a.data.astype(np.float32) @ b.data.astype(np.float32)
        return TensorHandle(product + d.data, d.dtype.scalar)

    def cast_impl(self, src, dst_type):
        source, target = src.dtype.scalar, dst_type.scalar
        if source == tl.bfloat16 and target == tl.float32:
            return TensorHandle(bfloat16_to_float32(src.data), target)
        if source == tl.float32 and target == tl.bfloat16:
            return TensorHandle(float32_to_bfloat16(src.data), target)
        with np.errstate(over="ignore"):
            return ExactBuilder.original_cast(self, src, dst_type)

    def create_fp_to_fp(self, src, dst_type, rounding_mode):
        return self.cast_impl(src, dst_type)


def install() -> None:
    """Replace the interpreter's arithmetic for the rest of this process."""
    options = interpreter.InterpreterOptions(allowed_dot_input_precisions=("tf32", "bf16x6", "ieee"))
    interpreter.interpreter_builder.options = options
    for name in ("create_dot", "cast_impl", "create_fp_to_fp"):
        setattr(interpreter.InterpreterBuilder, name, vars(ExactBuilder)[name])
