"""Matrix products that are as exact as the type of their operands, on tensor cores."""

import triton
import triton.language as tl


@triton.jit
def product(a, b, acc):
    """acc + a b, operands of one type, float32 accumulation.

    Half-precision operands are exact as they are. Of float32 operands plain tf32 keeps 11 bits of 24, and two tf32
    parts ("tf32x3") still lose up to 8 times the rounding of a float32 product. "bf16x6" cuts each into three bfloat16
    parts, 24 bits, and drops only products below 2^-26: as exact as float32, for the tensor-core time of tf32x3 and
    three quarters of its registers. "ieee" would leave the tensor cores idle.
    """
    if a.dtype == tl.float32:
        return tl.dot(a, b, acc, input_precision="bf16x6")
    return tl.dot(a, b, acc)


@triton.jit
def weighted_product(weights, x, acc):
    """acc + weights x with float32 weights and x in the I/O type.

    A half-precision x is exact in tf32, so the weights alone are cut into two tf32 parts, exact to 2^-23. tf32 has the
    exponents of float32: no weight over- or underflows, as it could in float16.
    """
    if x.dtype == tl.float32:
        return product(weights, x, acc)
    high = ((weights.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)  # 11 bits, rounded
    wide = x.to(tl.float32)
    acc = tl.dot(weights - high, wide, acc, input_precision="tf32")
    return tl.dot(high, wide, acc, input_precision="tf32")
