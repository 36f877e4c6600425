"""Where kernels read and write: nowhere but in the tensors of their call, and beyond 2^31 elements too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from infsa_deploy.ops import centrality_pool, neumann_attention
from tests.ops.compared import check, truths
from tests.plugins import exact_interpreter, launch
from tests.plugins.cases import normal

exact_interpreter.install()
HALF = torch.float16
OPS: dict[str, Callable[[], object]] = {
    "attention": lambda: launch.attend(normal(2, 17, 3 * 3 * 24).to(HALF), 3, 0.9, 2, 1e-6),
    "attention, one row": lambda: launch.attend(normal(2, 17, 3 * 3 * 24), 3, 0.9, 1, 1e-6, 1),
    "energy pool": lambda: launch.energy(normal(2, 17, 3 * 24).to(HALF), normal(2, 17, 72).to(HALF), 3, 1e-6),
    "centrality pool": lambda: launch.centrality(*_centrality(24), 1e-6),
    "centrality pool, long tokens": lambda: launch.centrality(*_centrality(1032), 1e-6),
}


def _centrality(E: int) -> tuple[torch.Tensor, ...]:
    return normal(2, 17, E).to(HALF), normal(2, 3, E, seed=1).to(HALF), normal(2, 3, seed=2).to(HALF)


@pytest.fixture
def guarded(monkeypatch) -> list[int]:
    """Fail at an access outside the tensors that the kernel was given; the list counts the accesses."""
    ranges: list[tuple[int, int]] = []
    counted = [0]

    def check(ptrs: TensorHandle, mask: TensorHandle) -> None:
        addresses = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape).astype(bool)].astype(np.int64)
        inside = np.zeros(addresses.shape, bool)
        for begin, end in ranges:
            inside |= (begin <= addresses) & (addresses < end)
        counted[0] += addresses.size
        assert inside.all(), f"{(~inside).sum()} accesses lie outside every tensor"

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    call = launch.Launcher.__call__

    def checked_load(self, ptrs, mask, *rest):
        check(ptrs, mask)
        return load(self, ptrs, mask, *rest)

    def checked_store(self, ptrs, value, mask, *rest):
        check(ptrs, mask)
        return store(self, ptrs, value, mask, *rest)

    def noted(self, name, grid, *arguments, **options):
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        ranges[:] = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tensors]
        call(self, name, grid, *arguments, **options)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", checked_load)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", checked_store)
    monkeypatch.setattr(launch.Launcher, "__call__", noted)
    return counted


@pytest.mark.parametrize("op", OPS)
def test_no_access_outside_the_tensors(guarded, op: str) -> None:
    """3 of the 16 heads of a tile, 17 tokens, and channels that fill no tile: all of a tile's edges are masked."""
    OPS[op]()
    assert guarded[0] > 1000


@pytest.fixture
def far(monkeypatch) -> Callable[..., dict[int, np.ndarray]]:
    """Run one program of a large grid without memory: far(kernel, pid, arguments) gives the addresses it stores to."""

    def run(name: str, pid: int, *arguments: object) -> dict[int, np.ndarray]:
        stored: dict[int, np.ndarray] = {}

        def load(self, ptrs, mask, other, cache_policy, is_volatile):
            kind = ptrs.get_element_ty()
            return TensorHandle(np.ones(ptrs.data.shape, interpreter._get_np_dtype(kind)), kind)

        def store(self, ptrs, value, mask, cache_policy):
            stored[len(stored)] = ptrs.data.astype(np.int64).ravel()

        monkeypatch.setattr(InterpreterBuilder, "create_masked_load", load)
        monkeypatch.setattr(InterpreterBuilder, "create_masked_store", store)
        place = lambda self, x, y, z: setattr(self, "grid_idx", (pid, 0, 0))  # noqa: E731
        monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", place)
        kernel = launch.KERNELS[name]
        constants = next(iter(kernel.tiles("fp16", 80).values())).constants
        kernel.function[(1,)](*arguments, **constants)
        return stored

    return run


def test_shares_of_more_than_2_to_the_31_tokens_and_heads(far) -> None:
    """centralities: the offset of row 4096 of 2^20 tokens is 2^32."""
    tokens, row, block = 1 << 20, 4096, 3
    scores, totals, shares = torch.empty(1), torch.empty(1), torch.empty(1, dtype=HALF)
    width = next(iter(launch.KERNELS["centralities"].tiles("fp16", 80).values())).constants["BLOCK_T"]
    (addresses,) = far("centralities", row * (tokens // width) + block, scores, totals, shares, tokens).values()
    first = shares.data_ptr() + 2 * (row * tokens + block * width)
    np.testing.assert_array_equal(addresses, first + 2 * np.arange(width))


def test_attention_of_more_than_2_to_the_31_values(far) -> None:
    """normalise: u and y of batch 2048 with 1024 tokens of 16 heads of 64 begin at 2^31."""
    rows, heads, dim, batch = 1024, 16, 64, 2048
    u, squares, scales, y = torch.empty(1), torch.empty(1), torch.empty(1), torch.empty(1, dtype=HALF)
    width = next(iter(launch.KERNELS["normalise"].tiles("fp16", 80).values())).constants["BLOCK_T"]
    stored = far("normalise", batch * heads * (rows // width), u, squares, scales, y, rows, heads, dim, 1, 0.9, 0.0)
    addresses = list(stored.values())[-1].reshape(width, -1)
    assert addresses[1, 1] == y.data_ptr() + 2 * (batch * rows * heads * dim + heads * dim + 1)


@pytest.mark.parametrize("hops", [1, 2])
def test_each_head_has_the_bound_of_its_own_keys(hops: int) -> None:
    """Keys of 1e-3 and of 10000 side by side: the bound of another head or image over- or underflows float16."""
    sizes = torch.tensor([[1e-3, 1e4], [1e4, 1e-3]])
    qkv = normal(2, 40, 3, 2, 16)
    qkv[:, :, 1] *= sizes[:, None, :, None]
    qkv = (qkv * torch.tensor([100.0, 1.0, 1.0])[:, None, None]).reshape(2, 40, -1).to(HALF)
    fields = {"heads": 2, "rho": 0.9, "hops": hops, "eps": 1e-6, "rows": 0}
    got = launch.attend(qkv, *fields.values())
    check(neumann_attention.OP, truths(neumann_attention.OP, [qkv], fields), got, HALF)


@pytest.mark.parametrize("E", [24, 1032], ids=["one pass", "long tokens"])
@pytest.mark.parametrize("which", ["u", "c"])
def test_nan_in_a_score_is_not_hidden(E: int, which: str) -> None:
    """relu(NaN) is NaN: the head whose query or offset is one has no numbers, as eager has none, and others do."""
    x, u, c = _centrality(E)
    (u if which == "u" else c)[1, 2] = float("nan")
    got = launch.centrality(x, u, c, 1e-6)
    eager = centrality_pool.OP.torch_op(x, u, c, 1e-6)
    for ours, theirs in zip(got, eager, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert ours[1, 2].isnan().all()
