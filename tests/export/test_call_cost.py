"""What a program needs, without running it, against sums done by hand."""

from __future__ import annotations

import pytest
import torch
from infsa_models.vit import ViT

from infsa_deploy.export.call_cost import trace_cost

# tiny: 16x24 image in patches of 8: 6 patches + class token; E 24, 3 heads of 8, MLP 40, 2 layers, 5 classes
N, E, H, D, M, L, K = 7, 24, 3, 8, 40, 2, 5
PATCHES, MLP, HEAD = 2 * 6 * E * 3 * 8 * 8, L * 2 * 2 * N * E * M, 2 * E * K


def test_operations_of_each_variant(tiny):
    linear = trace_cost(tiny("linear").module, tiny("linear").image, 1).work.flops_by_type["fp32"]
    mean_query_scores_and_values = L * 3 * 2 * N * E
    assert linear == PATCHES + MLP + HEAD + L * 4 * 2 * N * E * E + mean_query_scores_and_values
    for variant in ("pure", "softmax"):
        square = trace_cost(tiny(variant).module, tiny(variant).image, 1).work.flops_by_type["fp32"]
        assert square == PATCHES + MLP + HEAD + L * (4 * 2 * N * E * E + 2 * 2 * H * N * N * D)


def test_bytes(tiny):
    reference = tiny("pure")
    work = trace_cost(reference.module, reference.image, 3).work
    assert work.weights_bytes == 4 * sum(p.numel() for p in reference.module.parameters())
    assert work.input_bytes == 3 * 3 * 16 * 24 * 4
    assert work.output_bytes == 3 * K * 4


def test_pure_attention_holds_three_square_matrices(tiny):
    reference = tiny("pure", image_size=(512, 512), depth=1)
    cost = trace_cost(reference.module, reference.image, 2)
    tokens = 64 * 64 + 1
    square = 2 * H * tokens * tokens * 4
    assert cost.tokens == tokens
    assert cost.largest_shape in ((2, H, tokens, tokens), (2 * H, tokens, tokens))
    assert cost.largest_bytes == square
    assert 3 * square < cost.peak_bytes < 4 * square


def test_a_size_that_no_machine_holds_is_traced_all_the_same(tiny):
    small = tiny("softmax", depth=1)
    module = ViT(small.module.config).at_image_size((4096, 4096))
    cost = trace_cost(module, tiny("softmax", image_size=(4096, 4096), depth=1).image, 64)
    assert cost.tokens == 512 * 512 + 1
    assert cost.peak_bytes > 64 * cost.tokens * E * 4
    assert cost.largest_bytes < 64 * cost.tokens**2  # the fused kernel of the CPU never holds N x N


@pytest.mark.parametrize("size", [512, 1024])
def test_the_peak_is_what_a_run_allocates(tiny, size):
    reference = tiny("linear", image_size=(size, size), depth=1)
    cost = trace_cost(reference.module, reference.image, 1)
    image = torch.zeros(1, 3, size, size)
    watched = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with torch.no_grad(), watched as profile:
        reference.module(image)
    alive = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    fixed = cost.work.weights_bytes + cost.work.input_bytes
    assert fixed + peak == pytest.approx(cost.peak_bytes, rel=0.01)
