"""How inputs and outputs of any module are named."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.export.interface import class_count, flatten_outputs, input_names, own_output_names

A, B, C = torch.zeros(2, 3), torch.ones(1), torch.full((2,), 2.0)
Pair = namedtuple("Pair", "left right")


class HuggingFaceLike(OrderedDict):
    """As transformers' ModelOutput: an ordered dict without the fields that are None."""


@dataclass
class Detections:
    boxes: torch.Tensor
    masks: torch.Tensor | None


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (A, {"logits": A}),
        ((A, B), {"output_0": A, "output_1": B}),
        ([A], {"output_0": A}),
        ((A, None, B), {"output_0": A, "output_2": B}),
        ({"boxes": A, "scores": B}, {"boxes": A, "scores": B}),
        (Pair(A, B), {"left": A, "right": B}),
        (HuggingFaceLike(logits=A, hidden_states=(B, C)), {"logits": A, "hidden_states.output_0": B,
                                                          "hidden_states.output_1": C}),
        (Detections(A, None), {"boxes": A}),
        ((A, {"x": B, "y": [C]}), {"output_0": A, "output_1.x": B, "output_1.y.output_0": C}),
    ],
)  # fmt: skip
def test_outputs_are_flattened_by_name(outputs, expected):
    found = flatten_outputs(outputs)
    assert list(found) == list(expected)
    assert all(found[name] is expected[name] for name in expected)


def test_the_modules_own_names_stand_over_the_rule():
    assert list(flatten_outputs((A, B), ("logits", "attention"))) == ["logits", "attention"]
    with pytest.raises(ModelError, match="output_names"):
        flatten_outputs((A, B), ("logits",))
    module = nn.Identity()
    assert own_output_names(module) is None
    module.output_names = ["a"]
    assert own_output_names(module) == ("a",)


@pytest.mark.parametrize("outputs", [None, (), {"a": "text"}, (A, 3), {"a": {"b": A}, "a.b": A}])
def test_what_cannot_be_an_output(outputs):
    with pytest.raises(ModelError):
        flatten_outputs(outputs)


class Takes(nn.Module):
    def forward(self, image, mask, scale=None, *rest, flag=False):
        return image


def test_inputs_are_named_after_parameters():
    assert input_names(Takes(), 2) == ("image", "mask")
    assert input_names(Takes(), 5) == ("image", "mask", "scale", "rest_0", "rest_1")
    with pytest.raises(UsageError, match="image, mask"):
        input_names(Takes(), 1)
    with pytest.raises(UsageError, match="2 example inputs were given"):
        input_names(nn.Identity(), 2)


def test_classes_are_those_of_logits():
    assert class_count({"logits": A}) == 3
    assert class_count({"logits": torch.zeros(2, 3, 4)}) is None
    assert class_count({"scores": A}) is None
