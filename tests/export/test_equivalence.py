"""What the comparison in float64 must see, and what it must not mistake."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infsa_deploy
from infsa_deploy.config import ExportConfig
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.export.rewrite import equivalence
from infsa_deploy.export.rewrite import proven as rewrite
from infsa_deploy.export.rewrite.agreement import difference
from infsa_deploy.export.rewrite.calls import Convention
from infsa_deploy.export.rewrite.copying import copied
from infsa_deploy.export.rewrite.deployable import infsa_attentions
from infsa_deploy.export.rewrite.equivalence import Form, Plan, observe, plan, widened
from tests.models_in_the_wild import models
from tests.models_in_the_wild.attentions import Attention, Gated, QueryKeyNorm
from tests.models_in_the_wild.models import Block, Model

IMAGE = (torch.zeros(1, 3, 16, 16),)


def planned(module):
    wide = widened(module)
    return plan(observe(wide, wide, IMAGE, (1, 3)))


class Nearly(Attention):
    """Off by less than any float32 comparison would see."""

    def attend(self, q, k, v):
        return super().attend(q, k, v) * (1 + 1e-8)


def test_the_tolerance_sees_one_part_in_1e8():
    assert planned(Model(Block(Nearly()))).kept
    assert not planned(Model()).kept


def test_each_attention_is_judged_by_itself():
    found = planned(Model(Block(), Block(Gated()), Block(Attention("linear_infsa")), Block(QueryKeyNorm())))
    assert list(found.forms) == ["blocks.0.attn", "blocks.2.attn"]
    assert list(found.kept) == ["blocks.1.attn", "blocks.3.attn"]
    assert "differs by" in found.kept["blocks.1.attn"]


def test_a_hook_inside_is_part_of_the_module():
    module = Model()
    models.query_hook(module.blocks[0].attn)
    assert planned(module).kept


def test_a_block_of_ours_that_reads_tokens_gets_all_of_them():
    build = models.our_vit(models.FirstTokenBlock)
    assert not planned(build()).forms["blocks.0.attention"].narrow
    assert planned(models.our_vit()()).forms["blocks.0.attention"].narrow


def test_the_program_is_compared_even_if_every_form_were_accepted(monkeypatch):
    """The second line: with the first one gone, a form that changes the model is still found."""

    def credulous(seen):
        attentions = infsa_attentions(seen.wide)
        return Plan({name: Form(Convention.seen(a, seen.calls[name])) for name, a in attentions.items()}, {})

    monkeypatch.setattr(rewrite, "plan", credulous)
    made = rewrite.rewrite(Model(Block(), Block(Gated())), IMAGE, fold=True, static_batch=None)
    assert list(made.forms) == ["blocks.0.attn", "blocks.1.attn"]
    _, proven = rewrite.proven_program(made)
    assert list(proven.forms) == ["blocks.0.attn"]
    assert "the module around it changes" in proven.kept["blocks.1.attn"]


def test_a_program_that_computes_something_else_is_refused(monkeypatch):
    original = rewrite.capture

    def wrong(module, *arguments, **options):
        return original(nn.Sequential(module, nn.Softplus()), *arguments, **options)

    monkeypatch.setattr(rewrite, "capture", wrong)
    with pytest.raises(ModelError, match="is not what it computes"):
        rewrite.proven_program(rewrite.rewrite(Model(), IMAGE, fold=True, static_batch=None))


def test_zeros_prove_nothing(monkeypatch):
    module = Model(Block(Gated()))
    models.zero_output(module.blocks[0].attn)
    assert planned(module).kept
    monkeypatch.setattr(equivalence, "_stirred", copied)  # the weights that give zeros
    assert "zeros" in planned(module).kept["blocks.0.attn"]


def test_nothing_of_a_copy_leads_back():
    module = Model().eval()
    models.patched_forward(module.blocks[0].attn)
    twin = copied(module)
    with torch.no_grad():
        image = torch.randn(1, 3, 16, 16)
        before = twin(image)
        for parameter in module.parameters():
            parameter.zero_()
        assert torch.equal(twin(image), before)
    assert widened(twin)(image.double()).dtype == torch.float64


def test_what_a_difference_is():
    a = torch.tensor([1.0, -2.0])
    assert difference(a, a) == ""
    assert "differs by 0.5" in difference(a, torch.tensor([1.0, -1.0]))
    assert "shape" in difference(a, a[:1])
    assert "structure" in difference((a,), a)
    assert "inf" in difference(a, torch.tensor([1.0, float("nan")]))
    assert difference(torch.zeros(2), torch.tensor([0.0, 1e-30]))
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3])) == "whole numbers differ"


def test_require_ops(tmp_path):
    config, path = ExportConfig(require_ops=True), tmp_path / "m.onnx"
    with pytest.raises(ModelError, match=r"blocks\.1\.attn"):
        infsa_deploy.export(Model(Block(), Block(Gated())), IMAGE, path, config=config)
    assert not path.exists()
    assert not infsa_deploy.export(Model(), IMAGE, path, config=config).notices
    with pytest.raises(UsageError, match="cannot be combined"):
        ExportConfig(require_ops=True, fold=False)


def test_the_report_says_what_was_kept(tmp_path):
    report = infsa_deploy.export(Model(Block(), Block(Gated())), IMAGE, tmp_path / "m.onnx")
    assert report.rewritten == ("blocks.0.attn",)
    assert list(report.kept) == ["blocks.1.attn"]
    assert "blocks.1.attn is traced as it is" in report.notices[0]


def test_weights_that_are_no_numbers(tmp_path):
    module = Model()
    with torch.no_grad():
        module.head.weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match="weights that are no numbers") as refused:
        infsa_deploy.export(module, IMAGE, tmp_path / "m.onnx")
    assert "head.weight (1 of 80 elements)" in refused.value.why
