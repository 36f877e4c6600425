"""EnergyPool on a GPU: `energies` reads q once, `pool` of pooling.py reads x once, `combine` finishes.

The energies go through memory, 4 bytes a head and token, about 3 % of what q and x weigh: in one kernel with the
pooling, every program that pools a part of x's channels would need all of q.
"""

import triton
import triton.language as tl

from infsa_plugins.kernels import Kernel, same_for_all


@triton.jit
def energies(
    q, weights, tokens, heads, head_dim,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """weights [B, H, N] = ||q|| / sqrt(D), float32, q [B, N, H D]; grid (token blocks * head blocks * B)."""
    blocks = tl.cdiv(tokens, BLOCK_T)
    groups = tl.cdiv(heads, BLOCK_H)
    pid = tl.program_id(0)
    start = ((pid // groups) % blocks) * BLOCK_T
    batch = (pid // (groups * blocks)).to(tl.int64)
    t = tl.arange(0, BLOCK_T)
    h = (pid % groups) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    rows = q + (batch * tokens + start) * heads * head_dim
    here = (t < tokens - start)[:, None] & (h < heads)[None, :]
    squares = tl.zeros((BLOCK_T, BLOCK_H), tl.float32)
    for part in range(0, head_dim, BLOCK_D):
        at = t[:, None, None] * (heads * head_dim) + h[None, :, None] * head_dim + (part + d)[None, None, :]
        inside = here[:, :, None] & (part + d < head_dim)[None, None, :]
        tile = tl.load(rows + at, mask=inside, other=0.0).to(tl.float32)
        squares += tl.sum(tile * tile, 2)
    at = (batch * heads + h)[None, :] * tokens + (start + t)[:, None]
    tl.store(weights + at, tl.sqrt_rn(squares / head_dim), mask=here)


KERNELS = (
    Kernel(
        "energies",
        energies,
        {"q": "*T", "weights": "*fp32", "tokens": "i32", "heads": "i32", "head_dim": "i32"},
        same_for_all(BLOCK_T=16, BLOCK_H=4, BLOCK_D=64),
        {"head_dim": 8},
    ),
)
