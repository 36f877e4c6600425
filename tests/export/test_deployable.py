"""The exact rewrites: folded and packed attention against the reference formula."""

from __future__ import annotations

import pytest
import torch
from infsa_models.attention import InfSAAttention, hops_for_tolerance

from infsa_deploy.errors import ModelError
from infsa_deploy.export.rewrite.deployable import infsa_attentions, rewritten, to_deployable, to_reference
from tests.export.authors_attention import ForeignAttention, ForeignClassifier

ROUNDING = 1e-12  # float64: about 1e4 roundings


def attention(variant: str, **depth) -> InfSAAttention:
    torch.manual_seed(3)
    module = InfSAAttention(72, 3, variant, **depth).double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
        module.rho_logit.fill_(1.1)
    return module


@pytest.mark.parametrize("N", [1, 5, 197])
@pytest.mark.parametrize(
    ("variant", "depth"),
    [("linear", {}), ("linear", {"power_iterations": 4}), ("pure", {}), ("pure", {"hops": 3}), ("pure", {"hops": 5})],
)
@torch.no_grad()
def test_equals_the_reference_in_float64(N, variant, depth):
    module = attention(variant, **depth)
    x = torch.randn(2, N, 72, dtype=torch.float64)
    torch.testing.assert_close(to_deployable(module)(x).expand_as(x), module(x), rtol=ROUNDING, atol=ROUNDING)


@torch.no_grad()
def test_infinite_hops_become_enough_hops():
    module = attention("pure", hops="inf")
    deployable = to_deployable(module)
    rho = float(torch.sigmoid(module.rho_logit))
    assert rewritten(deployable).core.hops == hops_for_tolerance(rho)
    x = torch.randn(1, 31, 72, dtype=torch.float64)
    value_norm = module.v_proj(x).norm() * module.out_proj.weight.norm()
    assert (deployable(x) - module(x)).abs().max() <= 1e-6 * value_norm


@torch.no_grad()
def test_the_original_is_left_as_it_was():
    module = ForeignClassifier()
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    to_deployable(module)
    assert isinstance(module.first, ForeignAttention)
    assert all(torch.equal(tensor, before[key]) for key, tensor in module.state_dict().items())


class Shared(torch.nn.Module):
    """A user's module around attention of one instance in two places, which sums over the tokens."""

    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.first = self.second = attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)) + x).sum(1)


@pytest.mark.parametrize("variant", ["linear", "pure"])
@torch.no_grad()
def test_attention_used_otherwise_than_in_our_block(variant):
    module = Shared(attention(variant))
    x = torch.randn(2, 5, 72, dtype=torch.float64)
    made = to_deployable(module)
    assert rewritten(made.first)
    torch.testing.assert_close(made(x), module(x), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("rewrite", [to_deployable, to_reference])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"batch_first": False}])
@torch.no_grad()
def test_foreign_modules(rewrite, options):
    torch.manual_seed(0)
    module = ForeignClassifier(**options).double().eval()
    assert list(infsa_attentions(module)) == ["first", "second"]
    pixels = torch.randn(2, 3, 32, 40, dtype=torch.float64)
    torch.testing.assert_close(rewrite(module)(pixels), module(pixels), rtol=ROUNDING, atol=ROUNDING)


def test_unknown_variant_and_odd_projections():
    with pytest.raises(ModelError, match="cubic"):
        to_deployable(ForeignAttention(24, 3, "cubic_infsa"))
    odd = ForeignAttention(24, 3, "pure_infsa")
    odd.k_proj = torch.nn.Linear(24, 30)
    with pytest.raises(ModelError, match="do not fit together"):
        to_deployable(odd)
