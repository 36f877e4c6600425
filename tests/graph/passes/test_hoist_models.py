"""The pass on whole vision transformers: what is saved, and that the logits stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from infsa_deploy.graph.passes.hoist_token_selection import hoist_token_selection
from tests.export.small_vits import RELATIVE
from tests.graph.onnx_graphs import matmul_flops, normals, parse, rows_computed, run


class TorchViT(nn.Module):
    """Patches, class token, positions, torch's own encoder, class token read out."""

    def __init__(self, norm_first: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch = nn.Conv2d(3, 32, 8, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, 32))
        self.positions = nn.Parameter(torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 128, 0.0, "gelu", batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(32), enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        tokens = self.patch(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(image.shape[0], -1, -1), tokens], 1) + self.positions
        return self.head(self.encoder(tokens)[:, 0])


def exported(module: nn.Module, image: torch.Tensor, dynamic_batch: bool) -> ir.Model:
    """The module as torch's dynamo exporter writes it, opset 20."""
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},) if dynamic_batch else None
    with torch.no_grad():
        program = torch.onnx.export(
            module.eval(), (image,), dynamo=True, opset_version=20, dynamic_shapes=shapes, verbose=False
        )
    return program.model


def assert_same_logits(model: ir.Model, before: dict[str, np.ndarray], feeds: dict[str, np.ndarray]) -> None:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for optimized in (False, True):
        for name, logits in run(model, feeds, optimized).items():
            np.testing.assert_allclose(logits, before[name], rtol=0, atol=RELATIVE * np.abs(before[name]).max())


@pytest.mark.parametrize("dynamic_batch", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_encoder(norm_first, dynamic_batch):
    image = torch.from_numpy(normals(0, 2, 3, 32, 32))
    model = exported(TorchViT(norm_first), image, dynamic_batch)
    feeds = {model.graph.inputs[0].name: image.numpy()}
    before = run(model, feeds)
    mlp_before = rows_computed(model, "Gelu", 1)
    hoist_token_selection(model)
    assert mlp_before == [17, 17, 17]
    assert rows_computed(model, "Gelu", 1) == [17, 17, 1]
    assert rows_computed(model, "Softmax", -2) == [17, 17, 1]
    assert_same_logits(model, before, feeds)


def test_hugging_face_vit():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8
    )
    torch.manual_seed(0)
    vit = transformers.ViTForImageClassification(config).eval()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = vit

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.vit(image).logits

    image = torch.from_numpy(normals(1, 2, 3, 32, 32))
    model = exported(Logits(), image, dynamic_batch=False)
    feeds = {model.graph.inputs[0].name: image.numpy()}
    before, flops = run(model, feeds), matmul_flops(model)
    hoist_token_selection(model)
    assert rows_computed(model, "Gelu", 1) == [17, 1]
    assert matmul_flops(model) < 0.75 * flops
    assert_same_logits(model, before, feeds)


E, H, N, LAYERS = 16, 4, 65, 4


def infsa_vit() -> ir.Model:
    """A folded linear InfSA network, L = 4: one [N, E] x [E, E] product for the energies and an MLP in each block."""
    weights, lines = {"i": np.array(0), "axis": np.array([1])}, []
    value_info = []
    stream = "x"
    for n in range(LAYERS):
        shapes = {"scale": (E,), "shift": (E,), "q": (E, E), "wv": (E, E), "up": (E, 4 * E), "down": (4 * E, E)}
        weights |= {f"{key}{n}": normals(n, *shape, scale=0.25) for key, shape in shapes.items()}
        value_info += [f"float[2,{H},{E}] {p}{n}" for p in "pu"] + [f"float[2,{H}] m{n}", f"float[2,{N},{E}] out{n}"]
        lines.append(
            f"n{n} = LayerNormalization({stream}, scale{n}, shift{n}) e{n} = MatMul(n{n}, q{n}) "
            f"p{n}, m{n} = infsa.EnergyPool<heads = {H}, eps = 1e-6>(e{n}, n{n}) "
            f"u{n} = Relu(p{n}) c{n}, k{n} = infsa.CentralityPool<eps = 1e-6>(n{n}, u{n}, m{n}) "
            f"v{n} = MatMul(c{n}, wv{n}) y{n} = ReduceMean<keepdims = 1>(v{n}, axis) "
            f"r{n} = Add({stream}, y{n}) o{n} = LayerNormalization(r{n}, scale{n}, shift{n}) "
            f"up_{n} = MatMul(o{n}, up{n}) g{n} = Gelu(up_{n}) down_{n} = MatMul(g{n}, down{n}) "
            f"out{n} = Add(r{n}, down_{n})"
        )
        value_info += [f"float[2,{H},{E}] c{n}", f"float[2,{H}] k{n}"]
        stream = f"out{n}"
    lines.append(f"final = LayerNormalization({stream}, scale0, shift0) y = Gather<axis = 1>(final, i)")
    header = f"g (float[2,{N},{E}] x) => (float[2,{E}] y) <{', '.join(value_info)}> "
    return parse(header + "{" + " ".join(lines) + "}", **weights)


def token_units(model: ir.Model) -> float:
    """FLOPs of the products with weights, in units of one [N, E] x [E, E] product a batch element."""
    return matmul_flops(model) / (2 * 2 * N * E * E)


def test_infsa_vit_saves_the_last_feed_forward():
    model = infsa_vit()
    values = LAYERS * H / N  # the value products on the pooled tokens
    assert token_units(model) == pytest.approx(9 * LAYERS + values)
    hoist_token_selection(model)
    assert token_units(model) == pytest.approx(9 * (LAYERS - 1) + 1 + 8 / N + values)
    assert rows_computed(model, "Gelu", 1) == [N, N, N, 1]
    pools = [node for node in model.graph if node.domain == "infsa"]
    assert [node.inputs[0].shape[1] for node in pools] == [N] * 2 * LAYERS
